//! Rows of the table: what is measured, how, and the target.

use crate::{
    durable,
    work::{Protocol, Work},
};

/// Row of the table.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) protocol: Protocol,
    pub(crate) work: Work,
    pub(crate) connections: usize,
    pub(crate) figure: Figure,
    pub(crate) bound: Bound,
}

/// Measured figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    /// Processor time of a call or event in microseconds.
    Cost,
    /// Processor time of an event, relative to a stream of ten.
    Length,
    /// Processor time of a send of 0.3, relative to one of 1.0.
    V03,
    /// Processor time of a call on two cores, relative to one core.
    Cores,
    /// Memory of a waiting connection in KiB.
    Idle,
    /// Memory of a finished task in bytes.
    TaskMemory,
    /// Median latency in milliseconds with this many tasks.
    Latency(u64),
    /// 99.9th percentile of the latency in milliseconds while this many tasks are created.
    Growing(u64),
    /// Figure about durability.
    Durable(durable::Figure),
}

/// Target of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    /// Minimum of baseline / server.
    Ratio(f64),
    /// Maximum of the figure of the server.
    Most(f64),
    /// No target.
    None,
}

/// All rows in the order of the table.
pub(crate) fn rows() -> Vec<Row> {
    use Protocol::{Grpc, JsonRpc, Rest};
    let all = [Rest, JsonRpc, Grpc];
    let mut rows = Vec::new();
    let mut add = |name: String, protocol, work, connections, figure, bound| {
        rows.push(Row { name: format!("{protocol} {name}"), protocol, work, connections, figure, bound });
    };
    let json = |protocol: Protocol, json: Bound, grpc: Bound| if protocol == Grpc { grpc } else { json };
    for connections in [16, 64] {
        for protocol in all {
            let bound = json(protocol, Bound::Ratio(0.55), Bound::Ratio(0.70));
            add(
                format!("send, {connections} connections, µs"),
                protocol,
                Work::Send(64),
                connections,
                Figure::Cost,
                bound,
            );
        }
    }
    for protocol in all {
        let bound = json(protocol, Bound::Ratio(0.20), Bound::Ratio(0.60));
        add("send of 100 kB, µs".into(), protocol, Work::Send(100_000), 16, Figure::Cost, bound);
    }
    let v03 = "send of 0.3 relative to 1.0".into();
    add(v03, JsonRpc, Work::V03Send, 16, Figure::V03, Bound::Most(1.3));
    for protocol in all {
        let bound = json(protocol, Bound::Ratio(0.80), Bound::Ratio(0.85));
        add("get, µs".into(), protocol, Work::Get, 16, Figure::Cost, bound);
    }
    for (chunks, connections) in [(10, 16), (1000, 4), (10_000, 4)] {
        for protocol in all {
            let name = format!("stream of {chunks}, µs per event");
            add(
                name,
                protocol,
                Work::Stream(chunks),
                connections,
                Figure::Cost,
                json(protocol, Bound::Ratio(0.65), Bound::None),
            );
        }
    }
    for protocol in all {
        let name = "stream of 10000, event relative to a stream of 10".into();
        add(name, protocol, Work::Stream(10_000), 4, Figure::Length, Bound::Most(1.2));
    }
    for protocol in all {
        let bound = json(protocol, Bound::Ratio(2.0), Bound::None);
        add("burst of 1000, µs per event".into(), protocol, Work::Paced(1000), 4, Figure::Cost, bound);
    }
    for protocol in all {
        let name = "burst of 1000 of 576 bytes, µs per event".into();
        add(name, protocol, Work::Burst(1000), 4, Figure::Cost, Bound::None);
    }
    for protocol in all {
        let name = "fan-out to 100 subscribers, µs per delivery".into();
        add(name, protocol, Work::Fan(1000), 100, Figure::Cost, Bound::Most(4.0));
    }
    for protocol in all {
        let bound = json(protocol, Bound::Most(30.0), Bound::Most(34.0));
        add("idle subscription of one task, KiB".into(), protocol, Work::Idle, 1000, Figure::Idle, bound);
    }
    for protocol in all {
        add("idle streams of separate tasks, KiB".into(), protocol, Work::Own, 1000, Figure::Idle, Bound::Most(36.0));
    }
    add(
        "memory of a finished task, bytes".into(),
        JsonRpc,
        Work::Send(64),
        16,
        Figure::TaskMemory,
        Bound::Most(1500.0),
    );
    for tasks in [1000, 100_000] {
        for (state, of) in [(0, "all"), (3, "completed"), (4, "failed")] {
            let name = format!("list of 50 of {of} among {tasks} tasks, ms");
            add(name, Rest, Work::List(state), 1, Figure::Latency(tasks), Bound::Most(1.0));
        }
    }
    let grown = "send while 1000000 tasks are created, 64 connections, p99.9 ms".into();
    add(grown, JsonRpc, Work::Send(64), 64, Figure::Growing(1_000_000), Bound::Most(10.0));
    for protocol in [JsonRpc, Grpc] {
        for connections in [16, 64] {
            let name = format!("send, {connections} connections, two cores relative to one");
            add(name, protocol, Work::Send(64), connections, Figure::Cores, Bound::Most(1.4));
        }
    }
    rows.extend(durable::rows());
    rows
}
