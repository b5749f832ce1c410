//! Timestamps on the wire have milliseconds and end in `Z` (5.6.1).

use serde_json::json;

use crate::bindings::{serve, server};

/// Values of all `timestamp` members.
fn times(text: &str) -> Vec<&str> {
    let marks = text.match_indices(r#""timestamp":""#);
    marks.filter_map(|(at, mark)| text[at + mark.len()..].split('"').next()).collect()
}

fn is_milliseconds_utc(time: &str) -> bool {
    let shape: String = time.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    shape == "0000-00-00T00:00:00.000Z"
}

#[tokio::test]
async fn every_timestamp_has_milliseconds_and_utc() {
    let url = serve(server()).await;
    let http = crate::bindings::http();
    let post = async |path: &str, body: serde_json::Value| {
        let request = http.post(format!("{url}{path}")).header("content-type", "application/json");
        request.body(body.to_string()).send().await.unwrap().text().await.unwrap()
    };
    let message = |text: &str| json!({"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}});
    let mut all = String::new();
    // Enough samples to include whole seconds and tenths.
    for _ in 0..300 {
        all += &post("/message:send", message("hello")).await;
    }
    for text in ["!done", "/ask what?", "/fail x", "/stream 3 7"] {
        all += &post("/message:stream", message(text)).await;
        all +=
            &post("/rpc", json!({"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": message(text)})).await;
    }
    all += &http.get(format!("{url}/tasks?pageSize=100")).send().await.unwrap().text().await.unwrap();
    let list = json!({"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {"pageSize": 100}});
    all += &post("/rpc", list).await;
    let times = times(&all);
    assert!(times.len() > 500, "{}", times.len());
    let wrong: Vec<_> = times.into_iter().filter(|time| !is_milliseconds_utc(time)).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}
