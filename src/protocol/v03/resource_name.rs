//! Resource names of `a2a.v1`: `tasks/{id}` and `tasks/{id}/pushNotificationConfigs/{id}`. 1.0 has plain ids instead.

use crate::protocol::error::Error;

/// Collection segment between the task id and the push configuration id.
const PUSH_CONFIGS: &str = "/pushNotificationConfigs";

/// Parsed resource name. Ids may contain any character, also `/`; the first [`PUSH_CONFIGS`] separates them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResourceName<'a> {
    pub(crate) task: &'a str,
    /// Empty if the name is that of a task or of its collection of push configurations.
    pub(crate) config: &'a str,
}

impl<'a> ResourceName<'a> {
    /// Parses a name. Returns `None` if it does not begin with `tasks/` and a task id.
    ///
    /// Accepts the prefix `task/` of an early proto file, and the name of the collection of push configurations, which some
    /// clients send as the task.
    pub(crate) fn parse(name: &'a str) -> Option<Self> {
        let rest = ["tasks/", "task/"].into_iter().find_map(|prefix| name.strip_prefix(prefix))?;
        let split = rest.find(PUSH_CONFIGS).map(|at| (&rest[..at], &rest[at + PUSH_CONFIGS.len()..]));
        let (task, config) = match split {
            Some((task, "" | "/")) => (task, ""),
            Some((task, after)) => after.strip_prefix('/').map_or((rest, ""), |config| (task, config)),
            None => (rest, ""),
        };
        (!task.is_empty()).then_some(Self { task, config })
    }

    /// Returns the task id in the name of a task.
    ///
    /// # Errors
    /// `InvalidParams` for `field` if the name is empty or malformed.
    pub(crate) fn task(field: &str, name: &'a str) -> Result<String, Error> {
        let problem = if name.is_empty() { "is required" } else { "must have the form `tasks/{id}`" };
        Self::parse(name).map(|it| it.task.to_owned()).ok_or_else(|| Error::invalid_field(field, problem))
    }

    /// Returns the task id and the configuration id in the name of a push configuration. The latter may be empty.
    ///
    /// # Errors
    /// `InvalidParams` for `field` if the name is empty or malformed.
    pub(crate) fn config(field: &str, name: &'a str) -> Result<(String, String), Error> {
        let form = "must have the form `tasks/{id}/pushNotificationConfigs/{id}`";
        let problem = if name.is_empty() { "is required" } else { form };
        let Self { task, config } = Self::parse(name).ok_or_else(|| Error::invalid_field(field, problem))?;
        Ok((task.to_owned(), config.to_owned()))
    }
}

/// Returns the name of a task.
pub(crate) fn of_task(id: &str) -> String {
    format!("tasks/{id}")
}

/// Returns the name of a push configuration.
pub(crate) fn of_config(task: &str, id: &str) -> String {
    format!("tasks/{task}{PUSH_CONFIGS}/{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_parsed_from_names() {
        for (name, task, config) in [
            ("tasks/t-1", "t-1", ""),
            ("task/t-1", "t-1", ""),
            ("tasks/a/b:c %2F", "a/b:c %2F", ""),
            ("tasks/t/pushNotificationConfigs", "t", ""),
            ("tasks/t/pushNotificationConfigs/", "t", ""),
            ("task/t/pushNotificationConfigs/c/d", "t", "c/d"),
            ("tasks/t/pushNotificationConfigsX", "t/pushNotificationConfigsX", ""),
            ("tasks/a/b/pushNotificationConfigs/pushNotificationConfigs", "a/b", "pushNotificationConfigs"),
        ] {
            assert_eq!(ResourceName::parse(name), Some(ResourceName { task, config }), "{name}");
        }
        for name in ["", "t-1", "tasks", "tasks/", "task/", "/tasks/t", "tasks//pushNotificationConfigs/c"] {
            assert_eq!(ResourceName::parse(name), None, "{name}");
        }
        let ids = ResourceName::config("name", &of_config("a/b", "c")).unwrap();
        assert_eq!(ids, ("a/b".to_owned(), "c".to_owned()));
        assert_eq!(ResourceName::task("name", &of_task("a/b")).unwrap(), "a/b");
    }

    #[test]
    fn malformed_names_are_rejected_with_their_field() {
        for (name, problem) in [("", "is required"), ("t-1", "must have the form `tasks/{id}`")] {
            let error = ResourceName::task("parent", name).unwrap_err();
            assert_eq!((&*error.violations()[0].field, &*error.violations()[0].description), ("parent", problem));
        }
    }
}
