//! Examples that end by themselves, and what they print.

#[path = "../../examples/delegate.rs"]
#[expect(dead_code, reason = "the tests call `run` instead of `main`")]
mod delegate;
#[path = "../../examples/round_trip.rs"]
#[expect(dead_code, reason = "the tests call `run` instead of `main`")]
mod round_trip;

#[tokio::test]
async fn round_trip_sends_streams_and_cancels() {
    let mut out = Vec::new();
    round_trip::run(&mut out).await.unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(out.starts_with("agent: Counter\nsent: 1 2 3 \nstate: Submitted\nstate: Working\nchunk: 1 "), "{out}");
    assert!(out.contains("5 \nstate: Completed\n"), "{out}");
    assert!(out.ends_with("canceled: Canceled\n"), "{out}");
}

#[tokio::test]
async fn delegate_passes_artifacts_and_cancels_on() {
    let mut out = Vec::new();
    delegate::run(&mut out).await.unwrap();
    let expected =
        "line 1 about spring\nline 2 about spring\nline 3 about spring\neditor: Canceled\nwriter: Canceled\n";
    assert_eq!(String::from_utf8(out).unwrap(), expected);
}
