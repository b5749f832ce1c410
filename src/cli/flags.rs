//! Command-line flags for the configuration keys, generated from the key table.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::config::{Config, KEYS, Key};

/// Values of the flags that were given, by key. [`config::load`](crate::config::load) parses them.
#[derive(Clone, Default)]
pub(super) struct Flags(pub(super) Vec<(&'static Key, String)>);

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        let defaults = Config::default();
        command.args(KEYS.iter().map(|key| flag(key, &defaults)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn flag(key: &Key, defaults: &Config) -> Arg {
    let default = key.show(defaults).map(|value| format!("default: {}, ", value.trim_matches('"')));
    let help = format!("{} [{}env: {}]", key.sentence, default.unwrap_or_default(), key.variable());
    let arg = Arg::new(key.name).long(key.flag()).help(help).action(ArgAction::Set);
    let arg = arg.value_name(key.kind.trim_start_matches("secret ").to_uppercase());
    let choice = key.kind.contains('`').then(|| key.kind.split('`').skip(1).step_by(2).collect::<Vec<_>>().join("|"));
    let arg = choice.map_or(arg.clone(), |values| arg.value_name(values));
    match key.alone {
        Some(alone) => arg.num_args(0..=1).require_equals(true).default_missing_value(alone),
        None => arg,
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let given = |key: &'static Key| Some((key, matches.get_one::<String>(key.name)?.clone()));
        Ok(Self(KEYS.iter().filter_map(given).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Omits the values, because they may be secret.
impl std::fmt::Debug for Flags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(key, _)| key.name)).finish()
    }
}
