//! `a2a help`, examples in the help of commands, and the overview of all commands.

use clap::Args;

use super::{Usage, config, say, show::wrapped};

/// Template of the help of the program: one screen with all commands.
pub(super) const OVERVIEW: &str = include_str!("overview.txt");

/// Examples in the help: paragraphs, each with the names of its commands in the first line.
const EXAMPLES: &str = include_str!("examples.txt");

/// Topics: the name, a document, and its sections that are printed.
const TOPICS: [(&str, &str, &[&str]); 5] = [
    ("agents", include_str!("../../docs/agents.md"), &["Commands"]),
    ("auth", include_str!("../../docs/authentication.md"), &["Tokens and API keys", "Scopes"]),
    ("deploy", include_str!("../../docs/deployment.md"), &["Deployment", "systemd", "Proxy", "Compose", "Kubernetes"]),
    ("errors", include_str!("../../docs/errors.md"), &["Errors"]),
    ("output", include_str!("../../docs/command-line.md"), &["Output"]),
];

/// Number of examples in the short help.
const SHORT: usize = 2;

/// Arguments of `a2a help`.
#[derive(Debug, Args)]
pub(super) struct Help {
    /// Command, such as `push create`, or topic: `agents`, `auth`, `config` with a table or a key of the configuration,
    /// `deploy`, `errors` or `output`. Defaults to the program.
    #[arg(value_name = "COMMAND|TOPIC")]
    words: Vec<String>,
}

/// Runs `a2a help`.
pub(super) fn run(arguments: &Help) -> anyhow::Result<()> {
    let words: Vec<_> = arguments.words.iter().map(String::as_str).collect();
    let known = match words[..] {
        ["config", ref name @ ..] if name.len() < 2 => config::help(name.first().copied()),
        [name] => TOPICS.iter().find(|(topic, ..)| *topic == name).map(|(_, document, titles)| topic(document, titles)),
        _ => None,
    };
    if let Some(text) = known {
        return Ok(say(&text)?);
    }
    let mut command = &mut super::definition();
    command.build();
    for word in &words {
        let unknown = || Usage(format!("`{word}` is no command or topic; `a2a help` lists them"));
        command = command.find_subcommand_mut(word).ok_or_else(unknown)?;
    }
    if words.is_empty() {
        // A line for each command, of which the overview has several in a line.
        *command = command.clone().help_template("{about}\n\n{usage-heading} {usage}\n\n{all-args}{after-help}");
    }
    Ok(say(&format!("{}", command.render_long_help().ansi()))?)
}

/// Adds examples to the help of the command with this name, and to that of its subcommands.
pub(super) fn with_examples(command: clap::Command, name: &str) -> clap::Command {
    let mut paragraphs = EXAMPLES.split("\n\n").filter_map(|paragraph| paragraph.split_once(":\n"));
    let examples = paragraphs.find(|(names, _)| names.split(", ").any(|found| found == name));
    let command = match examples {
        None => command,
        Some((_, examples)) => {
            let some =
                |count| examples.lines().take(count).fold("Examples:".to_owned(), |text, line| text + "\n" + line);
            let before = command.get_after_long_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
            let short = command.get_after_help().map_or_else(|| some(SHORT), ToString::to_string);
            command.after_help(short).after_long_help(before + &some(usize::MAX))
        }
    };
    command.mut_subcommands(|command| {
        let name = format!("{name} {}", command.get_name());
        with_examples(command, &name)
    })
}

/// Returns sections of a document as plain text.
fn topic(document: &str, titles: &[&str]) -> String {
    let mut text = String::new();
    for title in titles {
        let mut lines = document.lines().skip_while(|line| line.trim_start_matches('#').trim_start() != *title);
        let heading = lines.next().into_iter();
        text.push_str(&plain(heading.chain(lines.take_while(|line| !line.starts_with("##")))));
    }
    text
}

/// Formats Markdown as plain text of limited width.
fn plain<'a>(source: impl Iterator<Item = &'a str>) -> String {
    let (mut lines, mut is_code) = (Vec::<String>::new(), false);
    for line in source {
        let is_own = line.is_empty() || ["- ", "| ", "#"].iter().any(|start| line.starts_with(start));
        match lines.last_mut() {
            _ if line.starts_with("```") => is_code = !is_code,
            _ if line.starts_with("<!--") => {}
            _ if is_code => lines.push(format!("    {line}").trim_end().to_owned()),
            // After the heads of the columns.
            _ if line.starts_with("| -") => drop(lines.pop()),
            Some(last) if !is_own && !last.is_empty() => last.extend([" ", line.trim()]),
            _ => lines.push(line.to_owned()),
        }
    }
    let plain = |line: &String| {
        let text = unlinked(line);
        match text.strip_prefix("| ").and_then(|row| row.trim_end_matches([' ', '|']).split_once(" | ")) {
            _ if line.starts_with("    ") => format!("{line}\n"),
            _ if line.starts_with('#') => format!("{}\n", line.trim_start_matches(['#', ' ']).to_uppercase()),
            None => wrapped(&text, if text.starts_with('-') { 2 } else { 0 }) + "\n",
            Some((first, rest)) => {
                let rest = rest.replace(". | ", ". ").replace(" | ", "; ");
                format!("  {first}\n      {}\n", wrapped(&rest, 6))
            }
        }
    };
    lines.iter().map(plain).collect()
}

/// Removes the targets of links from Markdown.
fn unlinked(line: &str) -> String {
    let mut text = line.to_owned();
    while let Some(middle) = text.find("](") {
        let (Some(start), Some(length)) = (text[..middle].rfind('['), text[middle..].find(')')) else { break };
        text.replace_range(middle..=middle + length, "");
        text.remove(start);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{super::definition, *};

    /// Calls `check` with each command and its name, in terminals of two widths.
    fn each_command(check: &mut dyn FnMut(&mut clap::Command, usize)) {
        fn visit(command: &mut clap::Command, width: usize, check: &mut dyn FnMut(&mut clap::Command, usize)) {
            check(command, width);
            let is_program = command.get_name() == "a2a";
            // That of other commands is of clap.
            let own = command.get_subcommands_mut().filter(|command| is_program || command.get_name() != "help");
            own.for_each(|command| visit(command, width, check));
        }
        // The width of the terminal, or of `COLUMNS`, does not matter.
        for width in [60, 100] {
            let mut command = definition().term_width(width);
            command.build();
            visit(&mut command, width, check);
        }
    }

    /// Returns the words of `a2a` in an example: without other commands of its line, redirections and the remark behind it.
    fn words(example: &str) -> Vec<String> {
        let command = example.trim().split("  ").next().unwrap();
        let command = command.split(" | ").find(|command| command.starts_with("a2a ")).unwrap();
        shlex::split(command).unwrap().into_iter().take_while(|word| !word.starts_with('>')).collect()
    }

    #[test]
    fn help_is_one_screen_and_ends_with_examples_that_parse() {
        each_command(&mut |command, width| {
            let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
            let (short, long) = (command.render_help().to_string(), command.render_long_help().to_string());
            if width < 100 {
                return;
            }
            let mut lines = short.lines().chain(long.lines());
            assert!(lines.all(|line| line.chars().count() <= 100), "{name}: {long}");
            let screen = if name == "a2a" { 24 } else { 45 };
            assert!(short.lines().count() <= screen, "{name}: {} lines: {short}", short.lines().count());
            let (_, examples) = long.rsplit_once("\n\n").unwrap();
            let mut examples = examples.lines();
            assert_eq!(examples.next(), Some("Examples:"), "{name}: {long}");
            let examples: Vec<_> = examples.collect();
            assert!(examples.len() >= 2, "{name}: {long}");
            for example in examples {
                let parsed = definition().try_get_matches_from(words(example));
                assert!(parsed.is_ok(), "{name}: {example}: {parsed:?}");
            }
        });
    }

    #[test]
    fn overview_names_all_commands_and_topics() {
        let mut command = definition();
        let help = command.render_help().to_string();
        let has = |name: &str| help.split([' ', ',', '\n', '.']).any(|word| word == name);
        for name in command.get_subcommands().map(clap::Command::get_name).chain(TOPICS.map(|(name, ..)| name)) {
            assert!(has(name), "{name}: {help}");
        }
    }

    /// The table of exit codes in the help is that of the document.
    #[test]
    fn exit_codes_are_documented() {
        let (.., document, _) = TOPICS.into_iter().find(|(name, ..)| *name == "output").unwrap();
        for line in super::super::EXIT_CODES.lines().skip(1) {
            let (code, meaning) = line.trim().split_once(' ').unwrap();
            let row = format!("| {code} | {} |", meaning.trim());
            assert!(document.replace('`', "").contains(&row), "{row}");
        }
    }

    /// Topics are sections that the documents have.
    #[test]
    fn topics_are_narrow_text() {
        for (name, document, titles) in TOPICS {
            for title in titles {
                let text = topic(document, &[title]);
                assert!(text.lines().count() > 3 && text.starts_with(&title.to_uppercase()), "{name}: {title}: {text}");
                assert!(text.lines().all(|line| line.chars().count() <= 100), "{name}: {title}: {text}");
                assert!(!text.contains("](") && !text.contains("\n|"), "{name}: {title}: {text}");
            }
        }
        let markdown = "- one\n  [two](three.md)\n\n| A | B |\n| --- | --- |\n| a | b | c |\n\n```sh\nx  y\n```";
        assert_eq!(plain(markdown.lines()), "- one two\n\n  a\n      b; c\n\n    x  y\n");
    }
}
