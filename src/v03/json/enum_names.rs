//! The words of classic JSON for what has a number in the messages.

use crate::pb::v1::{Role, TaskState};

/// An enum of 1.0 that 0.3 has other names for.
pub(in crate::v03) trait EnumNames: Sized {
    /// Names of its values for an error message.
    const VALUES: &'static [&'static str];

    /// The number of a word, in lower case and with hyphens.
    fn number(word: &str) -> Option<i32>;

    /// The word for a number, whatever it is: a reply never fails over what somebody stored.
    fn word(number: i32) -> &'static str;

    /// What the names of 1.0 begin with, in lower case and with hyphens.
    const PREFIX: &'static str;

    /// The number of a word, however it is spelled: `input_required`, `WORKING`, `TASK_STATE_FAILED`.
    fn liberal(word: &str) -> Option<i32> {
        Self::number(word).or_else(|| {
            let word = word.to_ascii_lowercase().replace('_', "-");
            Self::number(word.strip_prefix(Self::PREFIX).unwrap_or(&word))
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
            // 0.3 has one `l`, and so has everything of ours; some have written two.
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
