//! Terminals: colors.

use std::{ffi::OsString, fmt::Display};

use clap::{
    ColorChoice,
    builder::styling::{AnsiColor, Effects, Style, Styles},
};

use crate::protocol::pb::v1::TaskState;

/// Style of labels and of other text that matters less.
pub(super) const DIM: Style = Style::new().effects(Effects::DIMMED);

/// Style of errors and of failed tasks.
pub(super) const RED: Style = AnsiColor::Red.on_default().effects(Effects::BOLD);

/// Style of successful results.
pub(super) const GREEN: Style = AnsiColor::Green.on_default();

/// Style of warnings, and of tasks that wait for the user.
pub(super) const YELLOW: Style = AnsiColor::Yellow.on_default();

/// Style of tasks that run.
const BLUE: Style = AnsiColor::Cyan.on_default();

/// Styles of the help.
pub(super) const HELP: Styles = Styles::styled()
    .header(Style::new().effects(Effects::BOLD))
    .usage(Style::new().effects(Effects::BOLD))
    .literal(AnsiColor::Cyan.on_default())
    .placeholder(DIM);

/// Returns the last value of a flag, before the command line is parsed. `names` are `--long` and `-s`.
pub(super) fn flag_value(arguments: &[OsString], names: &[&str]) -> Option<String> {
    let arguments = arguments.iter().take_while(|argument| *argument != "--").filter_map(|argument| argument.to_str());
    let (mut last, mut is_next) = (None, false);
    for argument in arguments {
        let value = names.iter().find_map(|name| {
            let value = argument.strip_prefix(name)?;
            // `-ojson` and `-o=json`.
            value.strip_prefix('=').or((!name.starts_with("--")).then_some(value))
        });
        last = if std::mem::take(&mut is_next) { Some(argument) } else { value.filter(|value| !value.is_empty()) }
            .or(last);
        is_next = names.contains(&argument);
    }
    last.map(str::to_owned)
}

/// Applies `--color` to all output, before the command line is parsed, because help and errors have colors too.
pub(super) fn apply_color(arguments: &[OsString]) {
    let chosen = flag_value(arguments, &["--color"]).and_then(|value| value.parse().ok());
    match chosen.unwrap_or_default() {
        ColorChoice::Auto => anstream::ColorChoice::Auto,
        ColorChoice::Always => anstream::ColorChoice::Always,
        ColorChoice::Never => anstream::ColorChoice::Never,
    }
    .write_global();
}

/// Adds a style to a text. Where colors are not wanted, the writers of text remove it.
pub(super) fn paint(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Style of the name of a state.
pub(super) fn state_style(state: TaskState) -> Style {
    match state {
        TaskState::Completed => GREEN,
        TaskState::Failed | TaskState::Rejected => RED,
        TaskState::Canceled | TaskState::InputRequired | TaskState::AuthRequired => YELLOW,
        TaskState::Submitted | TaskState::Working => BLUE,
        TaskState::Unspecified => DIM,
    }
}
