//! Planted bugs of stores that several processes share, and of the engine on top of them. A test plants one to check that it would
//! be found. Only builds with debug assertions contain them.

/// Planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Commits of a shared store compare only the sequence number.
    CompareOnlySeq,
    /// Claims and acquisitions keep the fence of the task.
    KeepFence,
    /// Replicas are declared dead after an outage in which none could renew its lease.
    BuryAfterOutage,
    /// The commit that ends a turn ends the ownership of a task with unread mail.
    IgnoreUnreadMail,
    /// Followers and posters rely on notes, and never poll.
    NeverPoll,
    /// Followers answer reads from memory.
    ReadFollowerState,
    /// A recovered task is dropped if a follower is in memory.
    KeepFollowerState,
    /// A change whose outcome is unknown is abandoned while it can still be committed.
    AbandonWithoutBurn,
    /// A second record of an idempotency key is ignored.
    IgnoreDuplicates,
    /// The runner's commit overwrites the cancel that another replica has requested.
    OverwriteCancel,
    /// A commit marks only the deliveries that are not due in its snapshot.
    MarkBySnapshot,
}

/// Bug that is planted, if there is one. None, and of size zero, without debug assertions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults(#[cfg(debug_assertions)] Option<Fault>);

impl Faults {
    /// Plants a bug. Has no effect without debug assertions.
    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "bugs are planted only with debug assertions"))]
    pub const fn only(fault: Fault) -> Self {
        Self(
            #[cfg(debug_assertions)]
            Some(fault),
        )
    }

    /// Returns whether the bug is planted.
    pub fn has(self, fault: Fault) -> bool {
        cfg!(debug_assertions) && self == Self::only(fault)
    }
}
