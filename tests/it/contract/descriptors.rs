//! Compiled proto files compared with recorded facts of the published protocol; every element must have a comment.

use std::collections::HashMap;

use prost_reflect::{
    DescriptorPool, DynamicMessage, EnumDescriptor, FieldDescriptor, FileDescriptor, Kind, MessageDescriptor,
    MethodDescriptor, ReflectMessage, ServiceDescriptor, Syntax, Value, prost_types::FieldOptions,
};
use serde_json::{Map, Value as Json, json};

/// Packages of the protocol with their facts. The facts were taken from the published definitions, and the proto files were
/// written by hand, so the comparison detects mistakes in them.
const PACKAGES: [(&str, &str); 2] =
    [("lf.a2a.v1", include_str!("facts/lf.a2a.v1.json")), ("a2a.v1", include_str!("facts/a2a.v1.json"))];

#[test]
fn proto_files_match_the_protocol() {
    let pool = pool();
    let mut differences = Vec::new();
    for (package, facts) in PACKAGES {
        let facts: Json = serde_json::from_str(facts).unwrap();
        compare(package, &facts, &package_facts(&pool, package), &mut differences);
    }
    assert!(differences.is_empty(), "the proto files differ from the protocol:\n{}", differences.join("\n"));
}

#[test]
fn every_element_of_the_proto_files_has_a_comment() {
    let pool = pool();
    let mut without_comment = Vec::new();
    for (package, _) in PACKAGES {
        for file in files(&pool, package) {
            let comments = comments(&file);
            for (name, path) in elements(&file) {
                // The comments are published as descriptions, so they must be sentences.
                if !comments.get(path.as_slice()).is_some_and(|comment| comment.trim_end().ends_with('.')) {
                    without_comment.push(name);
                }
            }
        }
    }
    assert!(without_comment.is_empty(), "these have no comment that is a sentence:\n{}", without_comment.join("\n"));
}

fn pool() -> DescriptorPool {
    DescriptorPool::decode(a2a_service::pb::DESCRIPTORS).expect("the descriptors are well formed")
}

/// Files of a package. Asserts that there is at least one, so that no test passes without input.
fn files(pool: &DescriptorPool, package: &str) -> Vec<FileDescriptor> {
    let files: Vec<_> = pool.files().filter(|file| file.package_name() == package).collect();
    assert!(!files.is_empty(), "{package} is not among the descriptors");
    files
}

// === Comparing ===

/// Records every difference between `want` and `have`. Named elements are compared by name, so that a missing field is one
/// difference.
fn compare(path: &str, want: &Json, have: &Json, differences: &mut Vec<String>) {
    match (want, have) {
        (Json::Object(want), Json::Object(have)) => compare_members(path, want, have, differences),
        (Json::Array(want), Json::Array(have)) => match (by_name(want), by_name(have)) {
            (Some(want_by_name), Some(have_by_name)) => {
                let before = differences.len();
                compare_members(path, &want_by_name, &have_by_name, differences);
                if differences.len() == before && want != have {
                    differences.push(format!("{path}: the order is {} and should be {}", names(have), names(want)));
                }
            }
            _ if want != have => differences.push(unequal(path, &json!(want), &json!(have))),
            _ => (),
        },
        _ if want != have => differences.push(unequal(path, want, have)),
        _ => (),
    }
}

fn compare_members(path: &str, want: &Map<String, Json>, have: &Map<String, Json>, differences: &mut Vec<String>) {
    for (key, want) in want {
        match have.get(key) {
            Some(have) => compare(&format!("{path} {key}"), want, have, differences),
            None => differences.push(format!("{path} {key}: is missing and should be {want}")),
        }
    }
    for (key, have) in have.iter().filter(|(key, _)| !want.contains_key(*key)) {
        differences.push(format!("{path} {key}: is {have} and should be absent"));
    }
}

fn unequal(path: &str, want: &Json, have: &Json) -> String {
    format!("{path}: is {have} and should be {want}")
}

/// Returns the list as a map if its elements have distinct names.
fn by_name(list: &[Json]) -> Option<Map<String, Json>> {
    let map: Map<_, _> = list
        .iter()
        .map(|element| Some((element.get("name")?.as_str()?.to_owned(), element.clone())))
        .collect::<Option<_>>()?;
    (map.len() == list.len()).then_some(map)
}

fn names(list: &[Json]) -> String {
    list.iter().map(|element| element["name"].as_str().unwrap_or_default()).collect::<Vec<_>>().join(", ")
}

// === From descriptors to facts ===

fn package_facts(pool: &DescriptorPool, package: &str) -> Json {
    let mut syntaxes = Vec::new();
    let mut services = Map::new();
    for file in files(pool, package) {
        syntaxes.push(if file.syntax() == Syntax::Proto3 { "proto3" } else { "proto2" });
        services.extend(file.services().map(|service| (service.name().to_owned(), service_facts(&service))));
    }
    syntaxes.dedup();

    let messages = pool.all_messages().filter(|message| message.package_name() == package && !message.is_map_entry());
    let enums = pool.all_enums().filter(|descriptor| descriptor.package_name() == package);
    let mut facts = Map::from_iter([
        ("syntax".to_owned(), json!(syntaxes.join(" and "))),
        ("package".to_owned(), json!(package)),
        ("services".to_owned(), Json::Object(services)),
        (
            "messages".to_owned(),
            messages.map(|descriptor| (local(descriptor.full_name(), package), message_facts(&descriptor))).collect(),
        ),
        (
            "enums".to_owned(),
            enums.map(|descriptor| (local(descriptor.full_name(), package), enum_facts(&descriptor))).collect(),
        ),
    ]);
    let extensions = pool.all_extensions().filter(|extension| extension.package_name() == package);
    add_list(&mut facts, "extensions", extensions.map(|extension| json!(extension.full_name())).collect());
    Json::Object(facts)
}

fn service_facts(service: &ServiceDescriptor) -> Json {
    service.methods().map(|method| (method.name().to_owned(), method_facts(&method))).collect()
}

fn method_facts(method: &MethodDescriptor) -> Json {
    let service = method.parent_service();
    let package = service.package_name();
    let mut facts = Map::new();
    facts.insert("full_path".to_owned(), json!(format!("/{}/{}", service.full_name(), method.name())));
    facts.insert("request".to_owned(), json!(local(method.input().full_name(), package)));
    facts.insert("response".to_owned(), json!(local(method.output().full_name(), package)));
    facts.insert("client_streaming".to_owned(), json!(method.is_client_streaming()));
    facts.insert("server_streaming".to_owned(), json!(method.is_server_streaming()));
    let options = method.options();
    if let Some(Value::Message(rule)) = extension(&options, "google.api.http") {
        facts.insert("http".to_owned(), http_facts(&rule));
    }
    let signatures = list(extension(&options, "google.api.method_signature"));
    add_list(&mut facts, "method_signature", signatures.iter().map(|signature| json!(signature.as_str())).collect());
    Json::Object(facts)
}

fn http_facts(rule: &DynamicMessage) -> Json {
    let mut facts = Map::new();
    for (field, value) in rule.fields() {
        let name = field.name().to_owned();
        if let (Value::String(path), true) = (value, field.containing_oneof().is_some()) {
            // The fields of the pattern are named like the verbs.
            facts.insert("method".to_owned(), json!(name.to_uppercase()));
            facts.insert("path".to_owned(), json!(path));
        } else if let Value::String(text) = value {
            facts.insert(name, json!(text));
        } else if let Value::List(rules) = value {
            add_list(&mut facts, &name, rules.iter().filter_map(Value::as_message).map(http_facts).collect());
        } else {
            // The protocol uses no other value, so this is reported as a difference.
            facts.insert(name, json!(format!("{value:?}")));
        }
    }
    Json::Object(facts)
}

fn message_facts(message: &MessageDescriptor) -> Json {
    // The fields come by number, and the facts have them in the order of the file.
    let mut fields: Vec<_> = message.fields().collect();
    fields.sort_by_key(|field| field.path().last().copied());

    let mut facts = Map::new();
    facts.insert("fields".to_owned(), fields.iter().map(field_facts).collect());
    let oneofs = message.oneofs().filter(|oneof| !oneof.is_synthetic());
    add_list(&mut facts, "oneofs", oneofs.map(|oneof| json!(oneof.name())).collect());
    Json::Object(facts)
}

fn field_facts(field: &FieldDescriptor) -> Json {
    let package = field.parent_message().package_name();
    let proto = field.field_descriptor_proto();
    let mut facts = Map::new();
    facts.insert("name".to_owned(), json!(field.name()));
    facts.insert("number".to_owned(), json!(field.number()));
    facts.insert("json_name".to_owned(), json!(field.json_name()));
    if let Kind::Message(entry) = field.kind()
        && field.is_map()
    {
        facts.insert("type".to_owned(), json!("map"));
        facts.insert("label".to_owned(), json!("map"));
        facts.insert("map_key".to_owned(), json!(type_name(&entry.map_entry_key_field().kind(), package)));
        facts.insert("map_value".to_owned(), json!(type_name(&entry.map_entry_value_field().kind(), package)));
    } else {
        let kind = field.kind();
        let name = type_name(&kind, package);
        if kind.as_message().is_some() {
            facts.insert("type".to_owned(), json!("message"));
            facts.insert("type_name".to_owned(), json!(name));
        } else if kind.as_enum().is_some() {
            facts.insert("type".to_owned(), json!("enum"));
            facts.insert("type_name".to_owned(), json!(name));
        } else {
            facts.insert("type".to_owned(), json!(name));
        }
        facts.insert("label".to_owned(), json!(format!("{:?}", field.cardinality()).to_lowercase()));
    }
    if let Some(oneof) = field.containing_oneof().filter(|oneof| !oneof.is_synthetic()) {
        facts.insert("oneof".to_owned(), json!(oneof.name()));
    }
    add_flag(&mut facts, "proto3_optional", proto.proto3_optional());
    add_flag(&mut facts, "deprecated", proto.options.as_ref().is_some_and(FieldOptions::deprecated));
    let behavior = list(extension(&field.options(), "google.api.field_behavior"));
    let behavior: Vec<_> = behavior.iter().filter_map(Value::as_enum_number).collect();
    match behavior.as_slice() {
        // In `google.api.FieldBehavior`, 2 is REQUIRED.
        [2] => add_flag(&mut facts, "required", true),
        other => add_list(&mut facts, "field_behavior", other.iter().map(|number| json!(number)).collect()),
    }
    Json::Object(facts)
}

fn enum_facts(descriptor: &EnumDescriptor) -> Json {
    descriptor.values().map(|value| (value.name().to_owned(), json!(value.number()))).collect()
}

fn type_name(kind: &Kind, package: &str) -> String {
    // The debug form of a kind is its name in the proto language.
    local(&format!("{kind:?}"), package)
}

/// Strips the package from a name of the package.
fn local(full_name: &str, package: &str) -> String {
    let rest = full_name.strip_prefix(package).and_then(|rest| rest.strip_prefix('.'));
    rest.unwrap_or(full_name).to_owned()
}

/// The value of an option that a file of `google.api` defines, if it is set.
fn extension(options: &DynamicMessage, name: &str) -> Option<Value> {
    let pool = options.descriptor().parent_pool().clone();
    let extension = pool.get_extension_by_name(name).expect("the files of google.api are among the descriptors");
    options.has_extension(&extension).then(|| options.get_extension(&extension).into_owned())
}

fn list(value: Option<Value>) -> Vec<Value> {
    match value {
        Some(Value::List(values)) => values,
        _ => Vec::new(),
    }
}

fn add_list(facts: &mut Map<String, Json>, key: &str, values: Vec<Json>) {
    if !values.is_empty() {
        facts.insert(key.to_owned(), Json::Array(values));
    }
}

fn add_flag(facts: &mut Map<String, Json>, key: &str, value: bool) {
    if value {
        facts.insert(key.to_owned(), Json::Bool(true));
    }
}

// === Comments ===

/// Leading comments by the path of their element within the file.
fn comments(file: &FileDescriptor) -> HashMap<Vec<i32>, String> {
    let info = file.file_descriptor_proto().source_code_info.as_ref().expect("the descriptors have source info");
    info.location.iter().map(|location| (location.path.clone(), location.leading_comments().to_owned())).collect()
}

/// Named elements of a file with their paths, without map entries and the synthetic oneofs of `optional`.
fn elements(file: &FileDescriptor) -> Vec<(String, Vec<i32>)> {
    let pool = file.parent_pool();
    let mut elements = Vec::new();
    for service in file.services() {
        elements.push((service.full_name().to_owned(), service.path().to_vec()));
        elements.extend(service.methods().map(|method| (method.full_name().to_owned(), method.path().to_vec())));
    }
    for message in pool.all_messages().filter(|message| message.parent_file() == *file && !message.is_map_entry()) {
        elements.push((message.full_name().to_owned(), message.path().to_vec()));
        elements.extend(message.fields().map(|field| (field.full_name().to_owned(), field.path().to_vec())));
        let oneofs = message.oneofs().filter(|oneof| !oneof.is_synthetic());
        elements.extend(oneofs.map(|oneof| (oneof.full_name().to_owned(), oneof.path().to_vec())));
    }
    for descriptor in pool.all_enums().filter(|descriptor| descriptor.parent_file() == *file) {
        elements.push((descriptor.full_name().to_owned(), descriptor.path().to_vec()));
        elements.extend(descriptor.values().map(|value| (value.full_name().to_owned(), value.path().to_vec())));
    }
    elements
}
