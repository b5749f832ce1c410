//! The flags of the keys of the configuration: made from the table of keys, and read by nobody but the configuration.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::config::{Config, KEYS, Key};

/// What was said with flags, by key. What it means is not known yet.
#[derive(Clone, Default)]
pub(super) struct Flags(pub(super) Vec<(&'static Key, String)>);

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        let defaults = Config::default();
        command.args(KEYS.iter().map(|it| flag(it, &defaults)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn flag(key: &Key, defaults: &Config) -> Arg {
    let default = key.show(defaults).map(|it| format!("default: {}, ", it.trim_matches('"')));
    let help = format!("{} [{}env: {}]", key.sentence, default.unwrap_or_default(), key.variable());
    let arg = Arg::new(key.name).long(key.flag()).help(help).action(ArgAction::Set);
    let arg = arg.value_name(key.kind.trim_start_matches("secret ").to_uppercase());
    let choice = key.kind.contains('`').then(|| key.kind.split('`').skip(1).step_by(2).collect::<Vec<_>>().join("|"));
    let arg = choice.map_or(arg.clone(), |it| arg.value_name(it));
    match key.alone {
        Some(alone) => arg.num_args(0..=1).require_equals(true).default_missing_value(alone),
        None => arg,
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let said = |key: &'static Key| Some((key, matches.get_one::<String>(key.name)?.clone()));
        Ok(Self(KEYS.iter().filter_map(said).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// A secret may be among them.
impl std::fmt::Debug for Flags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|it| it.0.name)).finish()
    }
}
