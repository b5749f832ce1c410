//! Names of task states and roles in 0.3 JSON, and the spellings that are accepted for them.

use crate::pb::v1::{Role, TaskState};

/// Enum of 1.0 whose values have other names in 0.3 JSON.
pub(in crate::v03) trait EnumNames: Sized {
    /// Names of the values, for error messages.
    const VALUES: &'static [&'static str];

    /// Returns the number of a name in kebab case.
    fn number(word: &str) -> Option<i32>;

    /// Returns the name of a number. Unknown numbers have a name too, so that a stored value never fails a response.
    fn word(number: i32) -> &'static str;

    /// Prefix of the 1.0 names, converted to kebab case.
    const PREFIX: &'static str;

    /// Returns the number of a name in any spelling: `input_required`, `WORKING`, `TASK_STATE_FAILED`.
    fn liberal(word: &str) -> Option<i32> {
        Self::number(word).or_else(|| {
            let kebab_case = word.to_ascii_lowercase().replace('_', "-");
            Self::number(kebab_case.strip_prefix(Self::PREFIX).unwrap_or(&kebab_case))
        })
    }
}

impl EnumNames for TaskState {
    const VALUES: &'static [&'static str] = &[
        "submitted",
        "working",
        "input-required",
        "completed",
        "canceled",
        "failed",
        "rejected",
        "auth-required",
        "unknown",
    ];
    const PREFIX: &'static str = "task-state-";

    fn number(word: &str) -> Option<i32> {
        let state = match word {
            "submitted" => Self::Submitted,
            "working" => Self::Working,
            "input-required" => Self::InputRequired,
            "completed" => Self::Completed,
            // The specification has one `l`; some clients send two.
            "canceled" | "cancelled" => Self::Canceled,
            "failed" => Self::Failed,
            "rejected" => Self::Rejected,
            "auth-required" => Self::AuthRequired,
            "unknown" | "unspecified" => Self::Unspecified,
            _ => return None,
        };
        Some(state.into())
    }

    fn word(number: i32) -> &'static str {
        match Self::try_from(number).unwrap_or_default() {
            Self::Submitted => "submitted",
            Self::Working => "working",
            Self::InputRequired => "input-required",
            Self::Completed => "completed",
            Self::Canceled => "canceled",
            Self::Failed => "failed",
            Self::Rejected => "rejected",
            Self::AuthRequired => "auth-required",
            Self::Unspecified => "unknown",
        }
    }
}

impl EnumNames for Role {
    const VALUES: &'static [&'static str] = &["user", "agent"];
    const PREFIX: &'static str = "role-";

    fn number(word: &str) -> Option<i32> {
        match word {
            "user" => Some(Self::User.into()),
            "agent" => Some(Self::Agent.into()),
            _ => None,
        }
    }

    fn word(number: i32) -> &'static str {
        if number == i32::from(Self::User) { "user" } else { "agent" }
    }
}
