//! Documents in `openapi/`, read for the check: operations of HTTP+JSON, methods of JSON-RPC, and compiled schemas.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, LazyLock, OnceLock},
};

use a2a_service::protocol::Version;
use jsonschema::{Draft, Registry, Validator};
use serde_json::{Map, Value, json};

/// All documents, parsed once per process.
pub(super) static DOCUMENTS: LazyLock<Documents> = LazyLock::new(|| {
    let mut pool = SchemaPool::default();
    let v1 = RestDocument::new(&FILES[0], &mut pool);
    let v03 = RestDocument::new(&FILES[1], &mut pool);
    let json_rpc = JsonRpcDocument::new(&FILES[2], &mut pool);
    Documents { v1, v03, json_rpc }
});

/// Schemas that others refer to.
static REGISTRY: LazyLock<Registry<'static>> = LazyLock::new(|| {
    let resource = |file: &File| json!({"components": {"schemas": file.value["components"]["schemas"]}});
    let add =
        |registry: jsonschema::RegistryBuilder<'static>, file: &File| registry.add(file.uri, resource(file)).unwrap();
    FILES.iter().fold(Registry::new(), add).prepare().unwrap()
});

static FILES: LazyLock<[File; 3]> = LazyLock::new(|| {
    [
        File::parse("urn:a2a:v1", include_str!("../../../openapi/a2a-v1.json")),
        File::parse("urn:a2a:v0.3", include_str!("../../../openapi/a2a-v0.3.json")),
        File::parse("urn:a2a:jsonrpc", include_str!("../../../openapi/a2a-jsonrpc.json")),
    ]
});

struct File {
    uri: &'static str,
    /// Content. References within the document are absolute, so that each schema can be compiled alone.
    value: Value,
}

impl File {
    fn parse(uri: &'static str, text: &str) -> Self {
        let value = serde_json::from_str(&text.replace("\"#/", &format!("\"{uri}#/"))).unwrap();
        Self { uri, value }
    }

    /// Follows a reference within the document.
    fn resolved<'a>(&'a self, value: &'a Value) -> &'a Value {
        let Some(reference) = value["$ref"].as_str() else { return value };
        self.value.pointer(reference.strip_prefix(self.uri).unwrap().strip_prefix('#').unwrap()).unwrap()
    }
}

/// Schema that is compiled when it is first used.
#[derive(Debug)]
pub(super) struct Schema {
    value: Value,
    validator: OnceLock<Validator>,
}

impl Schema {
    /// Returns the violations of a value, each with its JSON pointer.
    pub(super) fn violations(&self, value: &Value) -> Vec<String> {
        let validator = self.validator.get_or_init(|| {
            let options = jsonschema::options().with_draft(Draft::Draft202012).should_validate_formats(true);
            options.with_registry(&REGISTRY).build(&self.value).unwrap()
        });
        if validator.is_valid(value) {
            return Vec::new();
        }
        validator.iter_errors(value).map(|error| format!("`{}`: {error}", error.instance_path())).collect()
    }
}

/// Schemas by their text, so that equal ones are compiled once.
#[derive(Default)]
struct SchemaPool(HashMap<String, Arc<Schema>>);

impl SchemaPool {
    fn add(&mut self, value: &Value) -> Arc<Schema> {
        let new = || Arc::new(Schema { value: value.clone(), validator: OnceLock::new() });
        Arc::clone(self.0.entry(value.to_string()).or_insert_with(new))
    }
}

pub(super) struct Documents {
    pub(super) v1: RestDocument,
    pub(super) v03: RestDocument,
    pub(super) json_rpc: JsonRpcDocument,
}

impl Documents {
    pub(super) fn rest(&self, version: Version) -> &RestDocument {
        match version {
            Version::V1_0 => &self.v1,
            Version::V0_3 => &self.v03,
        }
    }
}

/// OpenAPI document of a protocol version.
pub(super) struct RestDocument {
    /// Operations by HTTP method, with the segments of each path.
    paths: Vec<(Vec<String>, BTreeMap<String, Operation>)>,
    /// Schema of the body of an error.
    pub(super) error: Arc<Schema>,
}

pub(super) struct Operation {
    pub(super) id: String,
    /// Parameters in the query and in headers.
    pub(super) parameters: Vec<Parameter>,
    pub(super) request: Option<RequestContent>,
    /// Content of each response: a schema by media type.
    pub(super) responses: BTreeMap<u16, BTreeMap<String, Arc<Schema>>>,
    /// Reasons of the errors of each status, which are those of its examples.
    pub(super) reasons: BTreeMap<u16, BTreeSet<String>>,
}

pub(super) struct Parameter {
    pub(super) name: String,
    pub(super) is_header: bool,
    pub(super) is_required: bool,
    /// Value of `type` in the schema.
    schema_type: String,
    pub(super) schema: Arc<Schema>,
}

impl Parameter {
    /// Returns the JSON value of a text in a query or header. A text that has not the type of the parameter is a string.
    pub(super) fn value(&self, text: &str) -> Value {
        let value = match &*self.schema_type {
            "integer" => text.parse().ok().map(|number: i64| json!(number)),
            "boolean" => text.parse().ok().map(|value: bool| json!(value)),
            _ => None,
        };
        value.unwrap_or_else(|| json!(text))
    }
}

pub(super) struct RequestContent {
    pub(super) is_required: bool,
    pub(super) content: BTreeMap<String, Arc<Schema>>,
}

impl RestDocument {
    fn new(file: &File, pool: &mut SchemaPool) -> Self {
        let paths = file.value["paths"].as_object().unwrap().iter().map(|(path, item)| {
            let operations = item.as_object().unwrap().iter();
            let operations = operations.map(|(verb, value)| (verb.to_uppercase(), Operation::new(file, value, pool)));
            (segments(path).map(str::to_owned).collect(), operations.collect())
        });
        let paths = paths.collect();
        let error = pool.add(&json!({"$ref": format!("{}#/components/schemas/ErrorResponse", file.uri)}));
        Self { paths, error }
    }

    /// Finds the operations of a path by their HTTP methods. Of several templates that fit, the most specific one decides.
    pub(super) fn operations(&self, path: &str) -> Option<&BTreeMap<String, Operation>> {
        let path: Vec<_> = segments(path.strip_suffix('/').unwrap_or(path)).collect();
        let fitting = self.paths.iter().filter_map(|(template, operations)| {
            if template.len() != path.len() {
                return None;
            }
            let lengths = template.iter().zip(&path).map(|(template, segment)| literal_length(template, segment));
            Some((lengths.sum::<Option<usize>>()?, operations))
        });
        fitting.max_by_key(|(length, _)| *length).map(|(_, operations)| operations)
    }
}

fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.strip_prefix('/').unwrap_or(path).split('/')
}

/// Returns the number of literal characters of a segment of a template. `None` if it does not fit a segment of a path.
fn literal_length(template: &str, segment: &str) -> Option<usize> {
    let suffix = template.strip_prefix('{').and_then(|rest| rest.split_once('}')).map(|(_, suffix)| suffix);
    let fits = match suffix {
        Some(suffix) => segment.len() > suffix.len() && segment.ends_with(suffix),
        None => segment == template,
    };
    fits.then(|| suffix.unwrap_or(template).len())
}

impl Operation {
    fn new(file: &File, value: &Value, pool: &mut SchemaPool) -> Self {
        let parameters = value["parameters"].as_array().into_iter().flatten().map(|parameter| file.resolved(parameter));
        let parameters = parameters.filter(|parameter| parameter["in"] != "path").map(|parameter| Parameter {
            name: parameter["name"].as_str().unwrap().to_owned(),
            is_header: parameter["in"] == "header",
            is_required: parameter["required"] == true,
            schema_type: file.resolved(&parameter["schema"])["type"].as_str().unwrap_or_default().to_owned(),
            schema: pool.add(&parameter["schema"]),
        });
        let parameters = parameters.collect();
        let mut content = |value: &Value| {
            let types = value["content"].as_object().into_iter().flatten();
            types.map(|(media_type, content)| (media_type.clone(), pool.add(&content["schema"]))).collect()
        };
        let request = value.get("requestBody").map(|body| {
            let body = file.resolved(body);
            RequestContent { is_required: body["required"] == true, content: content(body) }
        });
        let responses = value["responses"].as_object().unwrap().iter();
        let responses: Vec<(u16, _)> =
            responses.map(|(status, response)| (status.parse().unwrap(), file.resolved(response))).collect();
        let reasons = responses.iter().map(|(status, response)| {
            let examples = response["content"]["application/json"]["examples"].as_object().into_iter().flatten();
            let reason = |(_, example): (_, &Value)| reason(&file.resolved(example)["value"]).map(str::to_owned);
            (*status, examples.filter_map(reason).collect())
        });
        let reasons = reasons.collect();
        let responses = responses.into_iter().map(|(status, response)| (status, content(response))).collect();
        Self { id: value["operationId"].as_str().unwrap().to_owned(), parameters, request, responses, reasons }
    }
}

/// Returns the reason of an error of HTTP+JSON.
pub(super) fn reason(error: &Value) -> Option<&str> {
    error["error"]["details"][0]["reason"].as_str()
}

/// OpenRPC document.
pub(super) struct JsonRpcDocument {
    methods: HashMap<String, Method>,
    /// Codes of all errors.
    pub(super) codes: BTreeSet<i64>,
    /// Schema of the `data` of an error of 1.0.
    pub(super) details: Arc<Schema>,
}

pub(super) struct Method {
    /// Schema of the object of all parameters.
    pub(super) params: Arc<Schema>,
    pub(super) result: Arc<Schema>,
    /// Codes of the errors of the method.
    pub(super) codes: BTreeSet<i64>,
}

impl JsonRpcDocument {
    fn new(file: &File, pool: &mut SchemaPool) -> Self {
        let code = |error: &Value| file.resolved(error)["code"].as_i64().unwrap();
        let methods = file.value["methods"].as_array().unwrap().iter().map(|method| {
            let params = method["params"].as_array().unwrap();
            let name = |param: &Value| param["name"].as_str().unwrap().to_owned();
            let required: Vec<_> = params.iter().filter(|param| param["required"] == true).map(name).collect();
            let properties: Map<_, _> = params.iter().map(|param| (name(param), param["schema"].clone())).collect();
            let params = json!({"type": "object", "properties": properties, "required": required});
            let params = pool.add(&params);
            let result = pool.add(&method["result"]["schema"]);
            let codes = method["errors"].as_array().unwrap().iter().map(code).collect();
            (method["name"].as_str().unwrap().to_owned(), Method { params, result, codes })
        });
        let methods = methods.collect();
        let codes = file.value["components"]["errors"].as_object().unwrap().values().map(code).collect();
        let details = pool.add(&json!({"$ref": format!("{}#/components/schemas/ErrorDetails", file.uri)}));
        Self { methods, codes, details }
    }

    pub(super) fn method(&self, name: &str) -> Option<&Method> {
        self.methods.get(name)
    }
}
