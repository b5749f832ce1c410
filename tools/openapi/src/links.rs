//! Links between operations: ids and page tokens of a response that are parameters of other operations.
//!
//! Links follow from names. The parameter `taskId` has its value from a member `taskId` of the response, from the member `id`
//! of a `Task`, or from the same parameter of the request.

use std::collections::BTreeMap;

use utoipa::openapi::{
    Deprecated, PathItem, Paths, RefOr,
    link::{Link, LinkBuilder},
    path::{Operation, Parameter, ParameterIn},
    response::Response,
    schema::{ArrayItems, Schema},
};

use super::schema::upper_camel;

/// Media type of responses that links refer to. Expressions cannot refer to events of a stream.
const JSON: &str = "application/json";

/// Name of the tenant in paths. Operations with a tenant are linked with each other.
const TENANT: &str = "tenant";

/// Name of the link to the next page.
const NEXT_PAGE: &str = "NextPage";

/// Names of the token of a page in a request and in a response.
const PAGE_TOKEN: &str = "pageToken";
const NEXT_PAGE_TOKEN: &str = "nextPageToken";

type Definitions = BTreeMap<String, RefOr<Schema>>;

/// Adds the links of all operations to their responses.
pub(super) fn add(paths: &mut Paths, schemas: &Definitions) {
    let mut endpoints = Vec::new();
    for (path, item) in &mut paths.paths {
        endpoints.extend(operations(item).filter_map(|operation| Endpoint::of(path, operation)));
    }
    for (path, item) in &mut paths.paths {
        for operation in operations(item) {
            let Some(source) = Endpoint::of(path, operation) else { continue };
            let Some(RefOr::T(response)) = operation.responses.responses.get_mut("200") else { continue };
            let values = Values::of(response, schemas);
            let links = endpoints.iter().filter(|target| target.id != source.id && !target.is_deprecated);
            let links = links.filter_map(|target| Some((target.id.clone(), source.link(target, &values)?)));
            let links: Vec<_> = links.chain(source.next_page(&values)).collect();
            response.links.extend(links.into_iter().map(|(name, link)| (name, link.into())));
        }
    }
}

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    let PathItem { get, put, post, delete, patch, .. } = item;
    [get, put, post, delete, patch].into_iter().flatten()
}

/// Operation as the source and as the target of links.
struct Endpoint {
    id: String,
    is_deprecated: bool,
    /// Names of the variables of the path, each with the name that identifies its value in all paths: `taskId` for the `id` in
    /// `/tasks/{id}`.
    variables: Vec<(String, String)>,
    query: Vec<String>,
}

impl Endpoint {
    fn of(path: &str, operation: &Operation) -> Option<Self> {
        let parameters = operation.parameters.iter().flatten().filter_map(|parameter| match parameter {
            RefOr::T(parameter) if parameter.parameter_in == ParameterIn::Query => Some(parameter.name.clone()),
            RefOr::T(Parameter { .. }) | RefOr::Ref(_) => None,
        });
        Some(Self {
            id: operation.operation_id.clone()?,
            is_deprecated: operation.deprecated == Some(Deprecated::True),
            variables: variables(path),
            query: parameters.collect(),
        })
    }

    fn has_tenant(&self) -> bool {
        self.variables.iter().any(|(name, _)| name == TENANT)
    }

    /// Creates the link from a response of this operation to another operation. `None` if the response has no value for it.
    fn link(&self, target: &Self, values: &Values) -> Option<Link> {
        if self.has_tenant() != target.has_tenant() {
            return None;
        }
        let link = LinkBuilder::new().operation_id(&target.id);
        if target.variables.iter().all(|(name, _)| name == TENANT) {
            let (name, value) = target.query.iter().find_map(|name| Some((name, values.of_id(name)?)))?;
            return Some(self.with_tenant(link).parameter(name, body(value)).build());
        }
        let mut link = link;
        let mut has_value = false;
        for (name, identifier) in &target.variables {
            let value = match values.of_id(identifier) {
                Some(pointer) => {
                    has_value = true;
                    body(pointer)
                }
                None => self.variable(identifier)?,
            };
            link = link.parameter(name, value);
        }
        has_value.then(|| link.build())
    }

    /// Creates the link from a page to the next one.
    fn next_page(&self, values: &Values) -> Option<(String, Link)> {
        let has_pages = values.texts.contains_key(NEXT_PAGE_TOKEN) && self.query.iter().any(|name| name == PAGE_TOKEN);
        let link =
            LinkBuilder::new().operation_id(&self.id).parameter(PAGE_TOKEN, body(&format!("/{NEXT_PAGE_TOKEN}")));
        let with_variable = |link: LinkBuilder, (name, _): &(String, String)| link.parameter(name, variable(name));
        has_pages.then(|| (NEXT_PAGE.to_owned(), self.variables.iter().fold(link, with_variable).build()))
    }

    fn with_tenant(&self, link: LinkBuilder) -> LinkBuilder {
        if self.has_tenant() { link.parameter(TENANT, variable(TENANT)) } else { link }
    }

    /// Returns the expression for a variable of the path of the request.
    fn variable(&self, identifier: &str) -> Option<String> {
        let (name, _) = self.variables.iter().find(|variable| variable.1 == identifier)?;
        Some(variable(name))
    }
}

/// Returns the expression for the value at a JSON pointer of the response.
fn body(pointer: &str) -> String {
    format!("$response.body#{pointer}")
}

/// Returns the expression for a variable of the path of the request.
fn variable(name: &str) -> String {
    format!("$request.path.{name}")
}

/// Returns the variables of a path, each with the name that identifies its value: the name of an `id` includes the segment
/// before it.
fn variables(path: &str) -> Vec<(String, String)> {
    let segments: Vec<_> = path.split('/').collect();
    let variables = segments.iter().enumerate().filter_map(|(index, segment)| {
        let (name, _) = segment.strip_prefix('{')?.split_once('}')?;
        let collection = segments.get(index.checked_sub(1)?)?;
        let singular = collection.strip_suffix('s').unwrap_or(collection);
        let identifier = if name == "id" { format!("{singular}Id") } else { name.to_owned() };
        Some((name.to_owned(), identifier))
    });
    variables.collect()
}

/// Texts in a response.
#[derive(Default)]
struct Values {
    /// JSON pointers by the names of the members. Of several members with a name, the first one of the highest level counts.
    texts: BTreeMap<String, String>,
    /// JSON pointers of members named `id`, by the name of the schema of their object.
    ids: Vec<(String, String)>,
}

impl Values {
    fn of(response: &Response, schemas: &Definitions) -> Self {
        let mut values = Self::default();
        if let Some(RefOr::T(content)) = response.content.get(JSON)
            && let Some(schema) = &content.schema
        {
            for (schema, pointer) in values.add(schema, "", schemas) {
                values.add(&schema, &pointer, schemas);
            }
        }
        values
    }

    /// Adds the texts of an object. Returns the schemas and pointers of the objects in it.
    fn add(&mut self, schema: &RefOr<Schema>, pointer: &str, schemas: &Definitions) -> Vec<(RefOr<Schema>, String)> {
        let mut name = "";
        let mut schema = schema;
        while let RefOr::Ref(reference) = schema {
            name = reference.ref_location.rsplit('/').next().unwrap_or_default();
            let Some(target) = schemas.get(name) else { return Vec::new() };
            schema = target;
        }
        if let RefOr::T(Schema::OneOf(alternatives)) = schema {
            let alternatives = alternatives.items.iter();
            return alternatives.flat_map(|alternative| self.add(alternative, pointer, schemas)).collect();
        }
        let RefOr::T(Schema::Object(object)) = schema else { return Vec::new() };
        let mut objects = Vec::new();
        for (member, schema) in &object.properties {
            let pointer = format!("{pointer}/{member}");
            match schema {
                RefOr::T(Schema::Object(_)) if member == "id" => self.ids.push((name.to_owned(), pointer)),
                RefOr::T(Schema::Object(_)) => drop(self.texts.entry(member.clone()).or_insert(pointer)),
                RefOr::T(Schema::Array(array)) => {
                    if let ArrayItems::RefOrSchema(items) = &array.items {
                        objects.push(((**items).clone(), format!("{pointer}/0")));
                    }
                }
                RefOr::Ref(_) => objects.push((schema.clone(), pointer)),
                RefOr::T(_) => {}
            }
        }
        objects
    }

    /// Returns the pointer of an identifier such as `taskId`. `None` for other names.
    fn of_id(&self, identifier: &str) -> Option<&str> {
        let resource = upper_camel(identifier.strip_suffix("Id")?);
        let by_resource = self.ids.iter().find(|(schema, _)| schema.ends_with(&resource)).map(|(_, pointer)| pointer);
        by_resource.or_else(|| self.texts.get(identifier)).map(String::as_str)
    }
}
