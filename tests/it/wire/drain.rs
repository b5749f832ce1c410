//! Graceful drain of the listener: idle connections close, streams continue within the grace period.

use std::time::Duration;

use a2a_service::{client, pb::v1::GetTaskRequest, transport::listener};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::Instant,
};
use tokio_stream::StreamExt as _;
use tonic::Request;

use super::support::*;

#[tokio::test]
async fn idle_connections_close_and_streams_continue() {
    let mut server = Server::start().await;
    let mut idle = TcpStream::connect(server.addr).await.unwrap();
    idle.write_all(b"GET /tasks/t HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
    idle.read_u8().await.unwrap();
    let mut silent = TcpStream::connect(server.addr).await.unwrap();

    let feed = [server.echo.feed()];
    let rest = client::rest(&server.url).unwrap().send_streaming_message(Request::new(send("feed"))).await.unwrap();
    let feed = [feed.into_iter().next().unwrap(), server.echo.feed()];
    let grpc = client::grpc(&server.url).unwrap().send_streaming_message(Request::new(send("feed"))).await.unwrap();
    let mut streams = [rest.into_inner(), grpc.into_inner()];
    for (feed, stream) in feed.iter().zip(&mut streams) {
        feed.send(Ok(event(hello("m"), 1))).unwrap();
        stream.next().await.unwrap().unwrap();
    }

    server.drain.cancel();
    idle.read_to_end(&mut Vec::new()).await.unwrap();
    silent.read_to_end(&mut Vec::new()).await.unwrap();
    for (feed, stream) in feed.iter().zip(&mut streams) {
        feed.send(Ok(event(hello("m"), 2))).unwrap();
        assert_eq!(stream.next().await.unwrap().unwrap(), event(hello("m"), 2));
    }
    assert!(TcpStream::connect(server.addr).await.is_err());
    assert!(!server.served.is_finished());
    drop(feed);
    for stream in &mut streams {
        assert!(stream.next().await.is_none());
    }
    assert!((&mut server.served).await.unwrap());
}

#[tokio::test]
async fn open_streams_are_cut_after_the_grace_period() {
    let settings = listener::ListenerSettings { grace_period: Duration::from_millis(20), ..Default::default() };
    let mut server = Server::with(super::support::settings(), settings).await;
    let _feed = server.echo.feed();
    let agent = client::rest(&server.url).unwrap();
    let mut stream = agent.send_streaming_message(Request::new(send("feed"))).await.unwrap().into_inner();
    server.drain.cancel();
    assert!(!(&mut server.served).await.unwrap());
    assert!(stream.next().await.unwrap().is_err());
}

/// Without `TCP_NODELAY`, each message would wait 40 ms for an acknowledgement. On a busy machine, a round may take longer by
/// itself, but not the median of each series.
#[tokio::test]
async fn writes_do_not_wait_for_acknowledgements() {
    const SERIES: usize = 50;
    let server = Server::start().await;
    for agent in [client::grpc(&server.url), client::rest(&server.url), client::json_rpc(&server.url)] {
        let agent = agent.unwrap();
        let mut medians = Vec::new();
        while medians.last().is_none_or(|median| *median >= Duration::from_millis(20)) {
            assert!(medians.len() < SERIES, "{medians:?}");
            let mut times = Vec::new();
            for _ in 0..11 {
                let start = Instant::now();
                let request = GetTaskRequest { id: "t".into(), ..Default::default() };
                agent.get_task(Request::new(request)).await.unwrap();
                let feed = server.echo.feed();
                let mut stream = agent.send_streaming_message(Request::new(send("feed"))).await.unwrap().into_inner();
                for seq in 1..=2 {
                    feed.send(Ok(event(hello("m"), seq))).unwrap();
                    stream.next().await.unwrap().unwrap();
                }
                drop(feed);
                assert!(stream.next().await.is_none());
                times.push(start.elapsed());
            }
            times.sort();
            medians.push(times[5]);
        }
    }
}
