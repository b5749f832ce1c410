//! The rows of the table: what is measured, how, and what it has to be.

use crate::{
    durable,
    work::{Protocol, Work},
};

/// A row.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) protocol: Protocol,
    pub(crate) work: Work,
    pub(crate) connections: usize,
    pub(crate) figure: Figure,
    pub(crate) bound: ServiceHandle,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    /// Processor time of a call, or of an event, in microseconds.
    Cost,
    /// How much of it an event of a stream takes, over one of a stream of ten.
    Length,
    /// How much of it a send of 0.3 takes, over one of 1.0.
    Classic,
    /// How much of it a call takes on two cores, over one.
    Cores,
    /// Memory of a connection that waits, in KiB.
    Idle,
    /// Memory of a task that has ended, in bytes.
    Kept,
    /// How long a call takes, the median in milliseconds, where there are so many tasks.
    ContextRef(u64),
    /// How long a call takes while there come to be so many tasks: one in a thousand takes longer, in milliseconds.
    Growing(u64),
    /// One of durability.
    Durable(durable::Figure),
}

/// What it has to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ServiceHandle {
    /// The floor over ours at least.
    Ratio(f64),
    /// Ours at most.
    Most(f64),
    /// As it is.
    None,
}

/// Every row, in the order of the table.
pub(crate) fn rows() -> Vec<Row> {
    use Protocol::{Grpc, JsonRpc, Rest};
    let all = [Rest, JsonRpc, Grpc];
    let mut rows = Vec::new();
    let mut add = |name: String, protocol, work, connections, figure, bound| {
        rows.push(Row { name: format!("{protocol} {name}"), protocol, work, connections, figure, bound });
    };
    let json = |it: Protocol, json: ServiceHandle, grpc: ServiceHandle| if it == Grpc { grpc } else { json };
    for connections in [16, 64] {
        for it in all {
            let bound = json(it, ServiceHandle::Ratio(0.55), ServiceHandle::Ratio(0.70));
            add(format!("send, {connections} connections, µs"), it, Work::Send(64), connections, Figure::Cost, bound);
        }
    }
    for it in all {
        let bound = json(it, ServiceHandle::Ratio(0.20), ServiceHandle::Ratio(0.60));
        add("send of 100 kB, µs".into(), it, Work::Send(100_000), 16, Figure::Cost, bound);
    }
    let classic = "classic send, over one of 1.0".into();
    add(classic, JsonRpc, Work::Classic, 16, Figure::Classic, ServiceHandle::Most(1.3));
    for it in all {
        let bound = json(it, ServiceHandle::Ratio(0.80), ServiceHandle::Ratio(0.85));
        add("get, µs".into(), it, Work::Get, 16, Figure::Cost, bound);
    }
    for (chunks, connections) in [(10, 16), (1000, 4), (10_000, 4)] {
        for it in all {
            let name = format!("stream of {chunks}, µs per event");
            add(
                name,
                it,
                Work::Stream(chunks),
                connections,
                Figure::Cost,
                json(it, ServiceHandle::Ratio(0.65), ServiceHandle::None),
            );
        }
    }
    for it in all {
        let name = "stream of 10000, an event over one of a stream of 10".into();
        add(name, it, Work::Stream(10_000), 4, Figure::Length, ServiceHandle::Most(1.2));
    }
    for it in all {
        let bound = json(it, ServiceHandle::Ratio(2.0), ServiceHandle::None);
        add("burst of 1000, µs per event".into(), it, Work::Paced(1000), 4, Figure::Cost, bound);
    }
    for it in all {
        let name = "burst of 1000 of 576 bytes, µs per event".into();
        add(name, it, Work::Burst(1000), 4, Figure::Cost, ServiceHandle::None);
    }
    for it in all {
        let name = "fan-out to 100 subscribers, µs per delivery".into();
        add(name, it, Work::Fan(1000), 100, Figure::Cost, ServiceHandle::Most(4.0));
    }
    for it in all {
        let bound = json(it, ServiceHandle::Most(30.0), ServiceHandle::Most(34.0));
        add("idle subscription of one task, KiB".into(), it, Work::Idle, 1000, Figure::Idle, bound);
    }
    for it in all {
        add("idle stream of a task each, KiB".into(), it, Work::Own, 1000, Figure::Idle, ServiceHandle::Most(36.0));
    }
    add(
        "memory of a finished task, bytes".into(),
        JsonRpc,
        Work::Send(64),
        16,
        Figure::Kept,
        ServiceHandle::Most(1500.0),
    );
    for tasks in [1000, 100_000] {
        for (state, of) in [(0, "all"), (3, "completed"), (4, "the few failed")] {
            let name = format!("list of 50 of {of} among {tasks} tasks, ms");
            add(name, Rest, Work::List(state), 1, Figure::ContextRef(tasks), ServiceHandle::Most(1.0));
        }
    }
    let grown = "send while there come to be 1000000 tasks, 64 connections, p99.9 ms".into();
    add(grown, JsonRpc, Work::Send(64), 64, Figure::Growing(1_000_000), ServiceHandle::Most(10.0));
    for it in [JsonRpc, Grpc] {
        for connections in [16, 64] {
            let name = format!("send, {connections} connections, two cores over one");
            add(name, it, Work::Send(64), connections, Figure::Cores, ServiceHandle::Most(1.4));
        }
    }
    rows.extend(durable::rows());
    rows
}
