//! Scripts as commands: their names, and the reasons why they can't be started, with remedies.

use std::{
    env,
    ffi::OsStr,
    fs::File,
    io::{self, Read as _},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use super::guard::find_program;
use crate::base::{decoding::BYTE_ORDER_MARK, stderr::shell_command};

/// Maximum length of the first line of a script that is read, in bytes. Linux has the same limit.
const FIRST_LINE: u64 = 256;

/// Returns the interpreter for the extension of a script.
fn interpreter_of(script: &str) -> Option<&'static str> {
    Some(match Path::new(script).extension()?.to_str()? {
        "py" => "python3",
        "js" | "mjs" | "cjs" => "node",
        "sh" => "sh",
        "bash" => "bash",
        "rb" => "ruby",
        "pl" => "perl",
        _ => return None,
    })
}

/// Returns the word of a command that is a script: `agent.py` of `python3 -u agent.py`, and `./agent.sh` of that alone.
pub(crate) fn script(words: &[impl AsRef<OsStr>]) -> Option<&str> {
    words
        .iter()
        .filter_map(|word| word.as_ref().to_str())
        .find(|word| interpreter_of(word).is_some() && !word.starts_with('-'))
}

/// Returns the name of the agent that a command is: that of its script, its module of Python, or else its program.
pub(crate) fn agent_name(words: &[String]) -> &str {
    let after = |flag: &str| words.iter().skip_while(|word| *word != flag).nth(1).map(String::as_str);
    let stem = |word| Path::new(word).file_stem().and_then(OsStr::to_str);
    let program = words.first().and_then(|program| Path::new(program).file_name()).and_then(OsStr::to_str);
    if let Some(name) = script(words).and_then(stem) {
        return name;
    }
    match program.unwrap_or_default() {
        python if python.starts_with("python") => after("-m").unwrap_or(python),
        // The script is the text of an argument.
        "sh" | "bash" | "dash" | "zsh" if after("-c").is_some() => "Command",
        program => program,
    }
}

/// Returns the path of the program of a command, which is looked for as a shell does, and then in the working directory. The script
/// of an interpreter is checked too if it is relative to that directory.
///
/// # Errors
/// The program or the script can't be started. The text has a remedy.
pub(super) fn find<T: AsRef<OsStr>>(words: &[T], has_workspace: bool) -> io::Result<PathBuf> {
    let name = words.first().map_or(OsStr::new(""), AsRef::as_ref);
    let path = find_program(name, None).or_else(|_| std::path::absolute(name))?;
    let shown = name.to_string_lossy();
    let program = Path::new(name).file_name().and_then(OsStr::to_str).unwrap_or_default();
    let is_interpreter = ["node", "sh", "bash", "ruby", "perl"].contains(&program) || program.starts_with("python");
    let missing = script(words).filter(|script| {
        is_interpreter && !(has_workspace && Path::new(script).is_relative()) && !Path::new(script).exists()
    });
    match problem(&path, &shown).or_else(|| missing.map(no_file)) {
        Some(problem) => Err(io::Error::new(io::ErrorKind::NotFound, problem)),
        None => Ok(path),
    }
}

fn no_file(name: &str) -> String {
    let directory = env::current_dir().ok().filter(|_| Path::new(name).is_relative());
    let place = directory.map(|directory| format!(" in {}", directory.display())).unwrap_or_default();
    format!("{name}: no such file{place}")
}

/// Returns why a program can't be started, with a remedy. `name` is its name in the text.
pub(super) fn problem(path: &Path, name: &str) -> Option<String> {
    let is_installed = |program: &str| find_program(OsStr::new(program), None).is_ok();
    let end = without_shell(Path::new("/bin/sh").exists());
    let metadata = match path.metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Some(format!("{name}: {error}")),
        Err(_) if name.contains('/') || interpreter_of(name).is_some() => return Some(no_file(name)),
        Err(_) => {
            let remedy = if name == "python" && is_installed("python3") {
                "use python3"
            } else {
                "install it, or write its path"
            };
            return Some(format!("{name}: not in PATH, and not in this directory; {remedy}{end}"));
        }
    };
    if metadata.is_dir() {
        let directory = name.trim_end_matches('/');
        let program = shell_command(&["--exec", &shell_command(&[&format!("{directory}/agent.py")])]);
        return Some(format!("{directory} is a directory; name a program in it: {program}"));
    }
    let use_instead = |interpreter| format!("use {}", shell_command(&["--exec", &shell_command(&[interpreter, name])]));
    let mut beginning = Vec::new();
    // A program that the server can't read is not a script. The opening of a named pipe would block.
    let file = if metadata.is_file() { File::open(path).ok() } else { None };
    file.and_then(|file| file.take(FIRST_LINE).read_to_end(&mut beginning).ok());
    let first_line =
        beginning.strip_prefix(b"#!").map(|line| line.split(|byte| *byte == b'\n').next().unwrap_or_default());
    let first = beginning.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&beginning).first();
    let is_text = first.is_some_and(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace());
    if first_line.is_none() && is_text && !beginning.contains(&0) {
        let interpreter = interpreter_of(name).unwrap_or("sh");
        return Some(format!("{name} has no #! line; {}", use_instead(interpreter)));
    }
    if metadata.permissions().mode() & 0o111 == 0 {
        return Some(format!("{name} is not executable; run: {}", shell_command(&["chmod", "+x", name])));
    }
    let line = first_line?;
    if line.ends_with(b"\r") {
        let file = shell_command(&[name]);
        return Some(format!(r"{name} has Windows line ends; run: sed -i 's/\r$//' {file}"));
    }
    let line = String::from_utf8_lossy(line);
    let mut words = line.split_ascii_whitespace();
    let mut interpreter = words.next()?;
    if interpreter.ends_with("/env") && Path::new(interpreter).exists() {
        interpreter = words.find(|word| !word.starts_with('-') && !word.contains('='))?;
    }
    if is_installed(interpreter) {
        return None;
    }
    let other = interpreter_of(name).or_else(|| interpreter.contains("python").then_some("python3"));
    let remedy = match other.filter(|other| is_installed(other)) {
        Some(other) => use_instead(other),
        None => format!("install it{end}"),
    };
    Some(format!("{name}: its interpreter {interpreter} is missing; {remedy}"))
}

/// Returns the end of an error if an image has no shell.
fn without_shell(has_shell: bool) -> &'static str {
    if has_shell { "" } else { ". This image has no shell; the image `a2a:python` has one, and Python 3" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_scripts() {
        for (command, name) in [
            ("./weather.py", "weather"),
            ("python3 weather.py", "weather"),
            ("/usr/bin/python3 -u /srv/my weather.py --city x.sh", "weather"),
            ("node x/agent.mjs", "agent"),
            ("python3 -m tools.weather", "tools.weather"),
            ("bash -c 'tr a-z A-Z'", "Command"),
            ("tr a-z A-Z", "tr"),
            ("/opt/bin/agent", "agent"),
            ("nice -n 5 ruby ./geo.rb", "geo"),
        ] {
            let words: Vec<_> = command.split(' ').map(str::to_owned).collect();
            assert_eq!(agent_name(&words), name, "{command}");
        }
    }

    #[test]
    fn image_without_a_shell_is_named() {
        assert_eq!(without_shell(true), "");
        assert!(without_shell(false).contains("`a2a:python` has one, and Python 3"));
    }
}
