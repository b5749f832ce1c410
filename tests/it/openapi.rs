//! Documents of the API: `openapi/` is up to date, examples fit their schemas, and documents follow the proto files.
//! `UPDATE=1` writes the files.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
};

use a2a_openapi::Documents;
use a2a_service::protocol::Version;
use prost_reflect::DescriptorPool;
use serde_json::{Value, json};

mod served;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi")
}

/// Returns the text of all documents, by their path below `openapi/`.
fn documents() -> BTreeMap<PathBuf, String> {
    let files = Documents::default().files().into_iter();
    files.map(|(path, document)| (path, document.pretty())).collect()
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn documents_are_up_to_date() {
    let (directory, documents) = (directory(), documents());
    if std::env::var_os("UPDATE").is_some() {
        drop(fs::remove_dir_all(&directory));
        fs::create_dir_all(directory.join("schemas")).unwrap();
        for (path, text) in &documents {
            fs::write(directory.join(path), text).unwrap();
        }
    }
    let schemas = fs::read_dir(directory.join("schemas")).unwrap();
    let schemas = schemas.map(|entry| Path::new("schemas").join(entry.unwrap().file_name()));
    let top = ["a2a-v1.json", "a2a-v0.3.json", "a2a-jsonrpc.json"].map(PathBuf::from);
    let found: BTreeSet<_> = schemas.chain(top).collect();
    assert_eq!(found, documents.keys().cloned().collect(), "UPDATE=1 writes the files");
    for (path, text) in documents {
        let written = fs::read_to_string(directory.join(&path)).unwrap();
        assert!(written == text, "{} is outdated; UPDATE=1 writes it", path.display());
    }
}

/// Returns a validator of a schema in a document.
fn validator(document: &Value, schema: &Value) -> jsonschema::Validator {
    // References of the schema point into the document.
    let mut whole = json!({"components": document["components"]});
    whole.as_object_mut().unwrap().extend(schema.as_object().unwrap().clone());
    jsonschema::draft202012::new(&whole).unwrap()
}

/// Validators of schemas in a document, each of which is compiled once.
struct Validators<'a> {
    document: &'a Value,
    by_schema: HashMap<String, jsonschema::Validator>,
}

impl<'a> Validators<'a> {
    fn of(document: &'a Value) -> Self {
        Self { document, by_schema: HashMap::new() }
    }

    fn assert_valid(&mut self, schema: &Value, value: &Value, at: &str) {
        let validator = self.by_schema.entry(schema.to_string()).or_insert_with(|| validator(self.document, schema));
        let errors: Vec<_> = validator.iter_errors(value).map(|error| error.to_string()).collect();
        assert!(errors.is_empty(), "{at}: {errors:?}: {value}");
    }
}

/// Returns the values of the examples of a media type.
fn examples<'a>(document: &'a Value, content: &'a Value) -> Vec<&'a Value> {
    let several = content["examples"].as_object().into_iter().flatten();
    let several = several.map(|(_, example)| &resolved(document, example)["value"]);
    several.chain(content.get("example")).collect()
}

/// Follows a reference within a document.
fn resolved<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value["$ref"].as_str() {
        Some(reference) => document.pointer(reference.strip_prefix('#').unwrap()).unwrap(),
        None => value,
    }
}

#[test]
fn every_operation_has_examples_that_fit_its_schemas() {
    for version in [Version::V1_0, Version::V0_3] {
        let document = parsed(&Documents::default().openapi(version).pretty());
        let mut validators = Validators::of(&document);
        let mut ids = BTreeSet::new();
        for (path, item) in document["paths"].as_object().unwrap() {
            for (verb, operation) in item.as_object().unwrap() {
                let at = format!("{version:?} {verb} {path}");
                assert!(ids.insert(operation["operationId"].as_str().unwrap().to_owned()), "{at}: id is not unique");
                assert!(!operation["description"].as_str().unwrap().is_empty(), "{at}");
                for parameter in operation["parameters"].as_array().unwrap() {
                    let parameter = resolved(&document, parameter);
                    assert!(!parameter["description"].as_str().unwrap_or_default().is_empty(), "{at} {parameter}");
                    let is_path = parameter["in"] == "path";
                    assert!(
                        !is_path || parameter.get("example").is_some() || path.contains("{tenant}"),
                        "{at} {parameter}"
                    );
                    if let Some(example) = parameter.get("example") {
                        validators.assert_valid(&parameter["schema"], example, &at);
                    }
                }
                let statuses = operation["responses"].as_object().unwrap();
                // 304 has no content.
                let responses = statuses.iter().filter(|(status, _)| *status != "304");
                let responses = responses.map(|(_, response)| resolved(&document, response));
                for body in operation.get("requestBody").into_iter().chain(responses) {
                    for (media_type, content) in body["content"].as_object().unwrap() {
                        let examples = examples(&document, content);
                        assert!(!examples.is_empty() || content["schema"]["type"] == "object", "{at} {media_type}");
                        for example in examples {
                            validators.assert_valid(&content["schema"], example, &at);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn operations_have_the_errors_of_their_rpcs() {
    for version in [Version::V1_0, Version::V0_3] {
        let document = parsed(&Documents::default().openapi(version).pretty());
        let operations = document["paths"].as_object().unwrap().values().flat_map(|item| item.as_object().unwrap());
        let errors = |operation: &Value, status: &str| -> BTreeSet<String> {
            let response = resolved(&document, &operation["responses"][status]);
            let examples = response["content"]["application/json"]["examples"].as_object().into_iter().flatten();
            examples.map(|(name, _)| name.clone()).collect()
        };
        for (_, operation) in operations {
            let id = operation["operationId"].as_str().unwrap();
            let rpc = id.trim_end_matches("WithTenant").trim_end_matches("Get").trim_end_matches("Alternate");
            let is_send = ["SendMessage", "SendStreamingMessage"].contains(&rpc);
            let [cancelable, unsupported] = if version == Version::V1_0 { ["400", "400"] } else { ["409", "415"] };
            let cases = [
                ("404", "TaskNotFound", is_send || rpc.contains("Push") || rpc == "GetTask" || rpc == "CancelTask"),
                (cancelable, "TaskNotCancelable", rpc == "CancelTask"),
                ("409", "IdempotencyConflict", is_send),
                ("400", "StreamingNotSupported", rpc == "SendStreamingMessage"),
                (unsupported, "ContentTypeNotSupported", operation.get("requestBody").is_some()),
            ];
            for (status, kind, expected) in cases.into_iter().filter(|_| !rpc.contains("Subscri")) {
                assert_eq!(errors(operation, status).contains(kind), expected, "{version:?} {id} {kind}");
            }
            let is_public_card = rpc == "GetPublicAgentCard";
            assert_eq!(errors(operation, "500").contains("Internal"), !is_public_card, "{version:?} {id}");
        }
    }
}

#[test]
fn links_pass_values_of_responses_to_operations() {
    for version in [Version::V1_0, Version::V0_3] {
        let document = parsed(&Documents::default().openapi(version).pretty());
        let items = || document["paths"].as_object().unwrap().values().flat_map(|item| item.as_object().unwrap());
        let operations: BTreeMap<_, _> =
            items().map(|(_, operation)| (operation["operationId"].as_str().unwrap(), operation)).collect();
        let parameters = |id: &str| {
            let parameters = operations[id]["parameters"].as_array().unwrap().iter();
            parameters.map(|parameter| resolved(&document, parameter)).collect::<Vec<_>>()
        };
        for (id, operation) in &operations {
            for (name, link) in operation["responses"]["200"]["links"].as_object().into_iter().flatten() {
                let at = format!("{version:?} {id} {name}: {link}");
                let target = parameters(link["operationId"].as_str().unwrap());
                let given = link["parameters"].as_object().unwrap();
                for parameter in given.keys() {
                    assert!(target.iter().any(|known| known["name"] == **parameter), "{at}");
                }
                for known in target.iter().filter(|known| known["required"] == true) {
                    assert!(given.contains_key(known["name"].as_str().unwrap()), "{at}");
                }
            }
        }
        let link = |id: &str, name: &str| operations[id]["responses"]["200"]["links"][name].clone();
        let to = |id: &str, parameters: Value| json!({"operationId": id, "parameters": parameters});
        let id = if version == Version::V1_0 { "id" } else { "taskId" };
        for target in ["GetTask", "CancelTask"] {
            assert_eq!(link("SendMessage", target), to(target, json!({id: "$response.body#/task/id"})));
            assert_eq!(link("ListTasks", target), to(target, json!({id: "$response.body#/tasks/0/id"})));
        }
        let context = json!({"contextId": "$response.body#/task/contextId"});
        assert_eq!(link("SendMessage", "ListTasks"), to("ListTasks", context));
        let token = json!({"pageToken": "$response.body#/nextPageToken"});
        assert_eq!(link("ListTasks", "NextPage"), to("ListTasks", token));
        // Expressions do not refer to streams.
        assert!(operations["SendStreamingMessage"]["responses"]["200"].get("links").is_none());
        if version == Version::V1_0 {
            let mut ids = json!({"taskId": "$response.body#/taskId", "id": "$response.body#/id"});
            let delete = "DeleteTaskPushNotificationConfig";
            assert_eq!(link("CreateTaskPushNotificationConfig", delete), to(delete, ids.clone()));
            ids["tenant"] = json!("$request.path.tenant");
            let delete = "DeleteTaskPushNotificationConfigWithTenant";
            assert_eq!(link("CreateTaskPushNotificationConfigWithTenant", delete), to(delete, ids));
        }
    }
}

#[test]
fn every_method_has_examples_that_fit_its_schemas() {
    let document = parsed(&Documents::default().openrpc().pretty());
    let mut validators = Validators::of(&document);
    let methods = document["methods"].as_array().unwrap();
    for method in methods {
        let name = method["name"].as_str().unwrap();
        let params = method["params"].as_array().unwrap();
        let pairings = method["examples"].as_array().unwrap();
        assert!(!pairings.is_empty(), "{name}");
        for error in method["errors"].as_array().unwrap() {
            let error = resolved(&document, error);
            assert!(error["code"].is_i64(), "{name}");
            // 0.3 has no error data.
            assert_eq!(error.get("data").is_some(), !name.contains('/'), "{name}: {error}");
            if let Some(data) = error.get("data") {
                validators.assert_valid(&json!({"$ref": "#/components/schemas/ErrorDetails"}), data, name);
            }
        }
        for pairing in pairings {
            validators.assert_valid(&method["result"]["schema"], &pairing["result"]["value"], name);
            let given = pairing["params"].as_array().unwrap();
            for param in params {
                let value = given.iter().find(|value| value["name"] == param["name"]);
                assert!(value.is_some() || param["required"] == false, "{name}: {}", param["name"]);
                if let Some(value) = value {
                    validators.assert_valid(&param["schema"], &value["value"], name);
                }
            }
            let known = |value: &Value| params.iter().any(|param| param["name"] == value["name"]);
            assert!(given.iter().all(known), "{name}: {given:?}");
        }
    }
    let names: BTreeSet<_> = methods.iter().map(|method| method["name"].as_str().unwrap()).collect();
    for name in super::rest_document::method_names() {
        assert!(names.contains(name), "{name}");
    }
}

#[test]
fn schema_files_are_json_schemas_with_valid_references() {
    let files: BTreeMap<_, _> = Documents::default()
        .schema_files()
        .into_iter()
        .map(|(name, schema)| (name, parsed(&schema.pretty())))
        .collect();
    for (name, schema) in &files {
        assert!(jsonschema::meta::is_valid(schema), "{name}");
        let mut values = vec![schema];
        while let Some(value) = values.pop() {
            match value {
                Value::Object(members) => {
                    if let Some(reference) = members.get("$ref").and_then(Value::as_str) {
                        let target = reference.strip_suffix(".json").unwrap();
                        assert!(files.contains_key(target), "{name}: {reference}");
                    }
                    values.extend(members.values());
                }
                Value::Array(items) => values.extend(items),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
    }
}

/// Compiles a proto file of a shop.
fn shop(source: &str) -> Documents {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("shop.proto"), source).unwrap();
    let google = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let mut compiler = protox::Compiler::new([directory.path(), &google]).unwrap();
    compiler.include_source_info(true).include_imports(true).open_files(["shop.proto"]).unwrap();
    Documents::new(DescriptorPool::decode(&*compiler.encode_file_descriptor_set()).unwrap())
}

const SHOP: &str = r#"
syntax = "proto3";
package shop.v1;
import "google/api/annotations.proto";
import "google/api/field_behavior.proto";

// A shop.
service Shop {
  // Orders something. Twice as much on Mondays.
  rpc PlaceOrder(Order) returns (Receipt) {
    option (google.api.http) = {
      post: "/shops/{shop_id=*}/orders" body: "*"
      additional_bindings: { post: "/{tenant}/shops/{shop_id=*}/orders" body: "*" }
    };
  }
  // Watches an order.
  rpc WatchOrder(WatchOrderRequest) returns (stream Receipt) {
    option (google.api.http) = { get: "/{name=shops/*/orders/*}:watch" };
  }
}

message Order {
  string tenant = 1;
  // The shop.
  string shop_id = 2 [(google.api.field_behavior) = REQUIRED];
  // Number of pieces.
  int32 piece_count = 3;
  int64 budget = 4;
  map<string, Note> notes = 5;
  oneof payment {
    // By card.
    string card_number = 6;
    bytes cash = 7;
  }
}

message Note { repeated Color colors = 1; }
enum Color { COLOR_UNSPECIFIED = 0; COLOR_RED = 1; }
message WatchOrderRequest { string name = 1; bool from_start = 2; }
message Receipt {
  string id = 1 [(google.api.field_behavior) = REQUIRED];
  Receipt previous = 2;
  string order_id = 3;
}
"#;

#[test]
fn documents_follow_the_proto_file() {
    let documents = shop(SHOP);
    let document = parsed(&documents.of_service("shop.v1.Shop", Version::V1_0).pretty());
    let paths: Vec<_> = document["paths"].as_object().unwrap().keys().collect();
    let watch = "/shops/{shopId}/orders/{orderId}:watch";
    assert_eq!(paths, ["/shops/{shopId}/orders", watch, "/{tenant}/shops/{shopId}/orders"]);
    let place = &document["paths"]["/shops/{shopId}/orders"]["post"];
    assert_eq!(place["operationId"], "PlaceOrder");
    assert_eq!(place["summary"], "Orders something");
    assert_eq!(place["description"], "Orders something. Twice as much on Mondays.");
    assert_eq!(document["paths"]["/{tenant}/shops/{shopId}/orders"]["post"]["operationId"], "PlaceOrderWithTenant");
    let content = &document["paths"][watch]["get"]["responses"]["200"]["content"]["text/event-stream"];
    assert_eq!(content["schema"]["$ref"], "#/components/schemas/Receipt");
    let from_start = &document["paths"][watch]["get"]["parameters"][2];
    assert_eq!((&from_start["name"], &from_start["schema"]["default"]), (&json!("fromStart"), &json!(false)));

    // The shop is that of the request, and the order is that of the response.
    let parameters = json!({"shopId": "$request.path.shopId", "orderId": "$response.body#/orderId"});
    let links = json!({"WatchOrder": {"operationId": "WatchOrder", "parameters": parameters}});
    assert_eq!(place["responses"]["200"]["links"], links);

    let schemas = &document["components"]["schemas"];
    let body = json!({"$ref": "#/components/schemas/PlaceOrderBody"});
    assert_eq!(place["requestBody"]["content"]["application/json"]["schema"], body);
    assert_eq!(place["requestBody"]["content"]["application/a2a+json"]["schema"], body);
    for (value, is_valid) in [
        (json!({"cardNumber": "1"}), true),
        (json!({"cash": "AAAA", "pieceCount": 1, "budget": "5", "unknown": 1}), true),
        (json!({"cash": "AAAA", "notes": {"a": {"colors": ["COLOR_RED"]}}}), true),
        (json!({"cash": "AAAA", "notes": {"a": {"colors": ["COLOR_UNSPECIFIED"]}}}), false),
        (json!({"cash": "AAAA", "cardNumber": "1"}), false),
        (json!({"cardNumber": "1", "pieceCount": 5_000_000_000_i64}), false),
        (json!({"cardNumber": "1", "budget": 5}), false),
        (json!({}), false),
    ] {
        assert_eq!(validator(&document, &body).is_valid(&value), is_valid, "{value}");
    }
    assert_eq!(schemas["PlaceOrderBodyCardNumber"]["description"], "By card.");
    assert_eq!(schemas["Receipt"]["properties"]["previous"]["$ref"], "#/components/schemas/Receipt");

    let renamed = shop(&SHOP.replace("piece_count", "number_of_pieces"));
    let text = renamed.of_service("shop.v1.Shop", Version::V1_0).pretty();
    assert!(text.contains("\"numberOfPieces\"") && !text.contains("pieceCount"), "{text}");
    let schemas: BTreeMap<_, _> = renamed.schema_files().into_iter().collect();
    assert!(schemas["shop.v1.OrderCash"].pretty().contains("\"numberOfPieces\""));
}
