//! The names that 0.3 has for resources, where 1.0 has plain ids: `tasks/{id}`, and below it
//! `pushNotificationConfigs/{id}`.

use crate::error::Error;

/// What stands between the id of a task and that of one of its push configurations.
const BELOW: &str = "/pushNotificationConfigs";

/// What a name says. Either id may be anything, so it is what stands between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResourceName<'a> {
    pub(crate) task: &'a str,
    /// Empty where none is named.
    pub(crate) config: &'a str,
}

impl<'a> ResourceName<'a> {
    /// Reads a name. `task/`, with which an early proto file had it, is read too, and so is the collection that a
    /// configuration is in, which some clients have for the task.
    pub(crate) fn parse(name: &'a str) -> Option<Self> {
        let rest = ["tasks/", "task/"].into_iter().find_map(|it| name.strip_prefix(it))?;
        let below = rest.find(BELOW).map(|at| (&rest[..at], &rest[at + BELOW.len()..]));
        let (task, config) = match below {
            Some((task, "" | "/")) => (task, ""),
            Some((task, config)) => config.strip_prefix('/').map_or((rest, ""), |it| (task, it)),
            None => (rest, ""),
        };
        (!task.is_empty()).then_some(Self { task, config })
    }

    /// The task of a field that names one.
    pub(crate) fn task(field: &str, name: &'a str) -> Result<String, Error> {
        let wrong = if name.is_empty() { "is required" } else { "is not tasks/{id}" };
        Self::parse(name).map(|it| it.task.to_owned()).ok_or_else(|| Error::invalid_field(field, wrong))
    }

    /// The task and the configuration of a field that names both.
    pub(crate) fn config(field: &str, name: &'a str) -> Result<(String, String), Error> {
        let wrong = "is not tasks/{id}/pushNotificationConfigs/{id}";
        let wrong = if name.is_empty() { "is required" } else { wrong };
        let Self { task, config } = Self::parse(name).ok_or_else(|| Error::invalid_field(field, wrong))?;
        Ok((task.to_owned(), config.to_owned()))
    }
}

/// The name of a task.
pub(crate) fn of_task(id: &str) -> String {
    format!("tasks/{id}")
}

/// The name of a push configuration.
pub(crate) fn of_config(task: &str, id: &str) -> String {
    format!("tasks/{task}{BELOW}/{id}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_its_ids() {
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
        let read = ResourceName::config("name", &of_config("a/b", "c")).unwrap();
        assert_eq!(read, ("a/b".to_owned(), "c".to_owned()));
        assert_eq!(ResourceName::task("name", &of_task("a/b")).unwrap(), "a/b");
    }

    #[test]
    fn what_is_no_name_is_refused_by_its_field() {
        for (name, why) in [("", "is required"), ("t-1", "is not tasks/{id}")] {
            let error = ResourceName::task("parent", name).unwrap_err();
            assert_eq!((&*error.violations()[0].field, &*error.violations()[0].description), ("parent", why));
        }
    }
}
