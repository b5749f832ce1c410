//! Command-line flags for the configuration keys, generated from the key table.

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};

use crate::config::{Config, KEYS, Key};

/// Names and values of the flags that were given. [`config::load`](crate::config::load) parses the values.
#[derive(Clone, Default)]
pub(super) struct Flags(pub(super) Vec<(String, String)>);

impl Args for Flags {
    fn augment_args(command: Command) -> Command {
        let defaults = Config::default();
        command.args(KEYS.iter().flat_map(|key| flags(key, &defaults)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

/// Returns the flag of a key and, hidden, its former names.
fn flags(key: &Key, defaults: &Config) -> Vec<Arg> {
    let default = key.show(defaults).map(|value| format!("default: {}, ", value.trim_matches('"')));
    let help = format!("{} [{}env: {}]", key.description, default.unwrap_or_default(), key.variable());
    let arg = Arg::new(key.flag()).long(key.flag()).help(help).action(ArgAction::Set);
    let arg = arg.value_name(key.kind.trim_start_matches("secret ").to_uppercase());
    let choice = key.kind.contains('`').then(|| key.kind.split('`').skip(1).step_by(2).collect::<Vec<_>>().join("|"));
    let arg = choice.map_or(arg.clone(), |values| arg.value_name(values));
    let arg = match key.value_without_argument {
        Some(value) => arg.num_args(0..=1).require_equals(true).default_missing_value(value),
        None => arg,
    };
    let former = key.former_flags().map(|name| arg.clone().id(name.clone()).long(name).hide(true)).collect();
    [vec![arg], former].concat()
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let names = KEYS.iter().flat_map(|key| [key.flag()].into_iter().chain(key.former_flags()));
        let value = |name: String| matches.get_one::<String>(&name).cloned().map(|value| (name, value));
        Ok(Self(names.filter_map(value).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Omits the values, because they may be secret.
impl std::fmt::Debug for Flags {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}
