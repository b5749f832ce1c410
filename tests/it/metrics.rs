//! Metrics: labels and number of series while callers choose names, and the names that the dashboard and the alerts use.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::SystemTime,
};

use a2a_service::auth::{NewToken, add_token};
use serde_json::{Value, json};

use crate::program::{a2a, started};

/// Maximum number of series of a server with one agent.
const MAX_SERIES: usize = 2000;

const DASHBOARD: &str = include_str!("../../deploy/grafana/a2a.json");
const RULES: &str = include_str!("../../deploy/prometheus/a2a.rules.yml");

/// Labels of the metrics by name, with the values that the documents list, as a unit test keeps them equal to the table in the code.
fn documented() -> BTreeMap<&'static str, BTreeMap<&'static str, BTreeSet<&'static str>>> {
    let document = include_str!("../../docs/operations.md");
    let (_, table) = document.split_once("| Metric | In OpenTelemetry | Labels | Meaning |\n").unwrap();
    let label = |label: &'static str| {
        let mut names = label.split('`').skip(1).step_by(2);
        (names.next().unwrap(), names.collect())
    };
    let row = |row: &'static str| {
        let cells: Vec<_> = row.split(" | ").collect();
        let name = cells[0].trim_matches(['|', '`', ' ']);
        (name, cells[2].split("; ").filter(|cell| !cell.is_empty()).map(label).collect())
    };
    table.lines().skip(1).take_while(|line| line.starts_with("| `")).map(row).collect()
}

/// Returns the name of the metric of a series.
fn metric_of(series: &str) -> &str {
    let endings = ["_bucket", "_sum", "_count"];
    let documented = documented();
    let base = endings.iter().find_map(|ending| series.strip_suffix(ending));
    base.filter(|base| !documented.contains_key(series) && documented.contains_key(base)).unwrap_or(series)
}

#[tokio::test]
async fn names_of_callers_make_no_series() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("tokens.json");
    let token = |name: String| add_token(&file, NewToken::new(name), SystemTime::now()).unwrap();
    let admin = token("admin".into());
    let mut command = a2a(&["serve", "--listen", "127.0.0.1:0", "--log-filter", "error"]);
    command
        .env("A2A_AUTH_TOKENS", &file)
        .env("A2A_STORE", format!("sqlite:{}", directory.path().join("a.db").display()));
    let tokens: Vec<_> = (0..60).map(|n| token(format!("owner{n}"))).collect();
    let (_child, url) = started(command).await;
    let client = crate::bindings::http();
    let round = async |round: usize, tokens: &[String]| {
        for (n, token) in tokens.iter().enumerate() {
            let name = format!("name-{round}-{n}");
            let send = json!({"message": {"messageId": name, "role": "ROLE_USER", "parts": [{"text": name}]}});
            let call = json!({"jsonrpc": "2.0", "id": name, "method": name, "params": {}});
            let requests = [
                client.post(format!("{url}/message:send")).json(&send).bearer_auth(token),
                client.post(format!("{url}/message:send")).json(&send).bearer_auth(&name),
                client.post(format!("{url}/rpc")).json(&call).bearer_auth(token),
                client.get(format!("{url}/{name}")).bearer_auth(token),
                client.get(format!("{url}/tasks/{name}")).bearer_auth(token),
                client.get(format!("{url}/{name}/tasks")).bearer_auth(token),
            ];
            for request in requests {
                drop(request.header("user-agent", &name).send().await.unwrap().bytes().await.unwrap());
            }
        }
        let text = client.get(format!("{url}/metrics")).bearer_auth(&admin).send().await.unwrap().text().await.unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        lines.map(|line| line.rsplit_once(' ').unwrap().0.to_owned()).collect::<BTreeSet<_>>()
    };
    // The limit of failures of an address is reached in the first round.
    let first = round(1, &tokens[..30]).await;
    let second = round(2, &tokens[30..]).await;
    assert_eq!(first.symmetric_difference(&second).collect::<Vec<_>>(), <Vec<&String>>::new());
    assert!(second.len() <= MAX_SERIES, "{}", second.len());

    // Those of servers that share a store.
    for name in ["a2a_statement", "a2a_lease", "a2a_claimed", "a2a_dead_replicas", "a2a_follow", "a2a_mail", "a2a_wake"]
    {
        assert!(!second.iter().any(|series| series.starts_with(name)), "{name}");
    }
    let documented = documented();
    for series in second {
        let (name, labels) = series.split_once('{').unwrap_or((&series, ""));
        let metric = documented.get(metric_of(name)).unwrap_or_else(|| panic!("{name} is not documented"));
        for label in labels.trim_end_matches('}').split("\",").filter(|label| !label.is_empty()) {
            let (label, value) = label.trim_end_matches('"').split_once("=\"").unwrap();
            let allowed = metric.get(label).or((label == "le").then(BTreeSet::new).as_ref()).cloned();
            let allowed = allowed.unwrap_or_else(|| panic!("{name}: the label {label} is not documented"));
            assert!(allowed.is_empty() || allowed.contains(value), "{name}: {label} is {value}");
        }
    }
}

/// Metrics that a text names, each with the labels of its selector.
fn selectors(text: &str) -> Vec<(&str, Vec<&str>)> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut found = Vec::new();
    for (at, _) in text.match_indices("a2a_").chain(text.match_indices("process_")) {
        if text[..at].ends_with(is_name) {
            continue;
        }
        let name = text[at..].split(|c| !is_name(c)).next().unwrap();
        let rest = text[at + name.len()..].strip_prefix('{').and_then(|rest| rest.split_once('}'));
        let labels = rest.map_or("", |(labels, _)| labels).split(',').filter(|label| !label.is_empty());
        found.push((name, labels.map(|label| label.trim().split(['=', '!']).next().unwrap()).collect()));
    }
    found
}

/// Labels that Prometheus adds.
const ADDED: [&str; 3] = ["instance", "job", "le"];

#[test]
fn dashboard_and_alerts_use_metrics_and_labels_of_the_table() {
    fn expressions(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    match value.as_str() {
                        Some(text) if name == "expr" || name == "query" => found.push(text.to_owned()),
                        _ => expressions(value, found),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| expressions(item, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut texts =
        vec![RULES.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>().join("\n")];
    expressions(&serde_json::from_str(DASHBOARD).unwrap(), &mut texts);
    assert!(texts.len() > 20, "the dashboard has panels");
    let documented = documented();
    let all: BTreeSet<_> = documented.values().flat_map(BTreeMap::keys).copied().chain(ADDED).collect();
    for text in &texts {
        for (name, labels) in selectors(text) {
            let metric = documented.get(metric_of(name)).unwrap_or_else(|| panic!("{name} is no metric: {text}"));
            for label in labels {
                // A selector of all agents also selects a server with one.
                assert!(metric.contains_key(label) || ADDED.contains(&label), "{name} has no label {label}: {text}");
            }
        }
        for (_, rest) in text.match_indices("by (").map(|(at, start)| text.split_at(at + start.len())) {
            for label in rest.split(')').next().unwrap().split(',').map(str::trim) {
                assert!(all.contains(label), "no metric has the label {label}: {text}");
            }
        }
    }
}
