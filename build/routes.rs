//! REST routes from `google.api.http` annotations: HTTP verb, path template and body of each RPC.

use std::ops::Range;

use proc_macro2::{Ident, TokenStream};
use prost_reflect::{DynamicMessage, MethodDescriptor, Value};
use quote::quote;

use super::{extra_bindings::EXTRA_BINDINGS, schema::Schema};
use crate::Result;

/// A `google.api.http` binding, before its template is parsed.
pub(crate) struct HttpBinding {
    pub(crate) verb: String,
    pub(crate) template: String,
    pub(crate) body: String,
}

impl Schema {
    /// Returns the HTTP bindings of an RPC: those of the proto file, then `EXTRA_BINDINGS`.
    pub(crate) fn http_bindings(&self, method: &MethodDescriptor) -> Vec<HttpBinding> {
        let options = method.options();
        let rule = options.get_extension(&self.http);
        let rule = rule.as_message();
        let text = |rule: &DynamicMessage, field: &str| {
            rule.get_field_by_name(field).and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
        };
        let read = |rule: &DynamicMessage| {
            let verbs = ["get", "put", "post", "delete", "patch"];
            let verb = verbs.into_iter().find(|verb| rule.has_field_by_name(verb))?;
            Some(HttpBinding { verb: verb.to_uppercase(), template: text(rule, verb), body: text(rule, "body") })
        };
        let additional = rule.and_then(|rule| rule.get_field_by_name("additional_bindings"));
        let additional = additional.iter().filter_map(|list| list.as_list()).flatten().filter_map(Value::as_message);
        let extra = EXTRA_BINDINGS.iter().filter(|extra| extra.0 == method.full_name());
        let extra = extra.map(|extra| extra.1.map(str::to_owned));
        let extra = extra.map(|[verb, template, body]| HttpBinding { verb, template, body });
        rule.into_iter().chain(additional).filter_map(read).chain(extra).collect()
    }
}

/// A parsed HTTP binding, such as `POST /{tenant}/tasks/{id=*}:cancel` with body `*`.
pub(crate) struct Route {
    rpc: Ident,
    pub(crate) verb: String,
    /// Entries, one per path segment; `None` matches any segment.
    segments: Vec<Option<String>>,
    /// Members of the request that the path carries, and the range of segments of each.
    fields: Vec<(String, Range<usize>)>,
    pub(crate) custom_verb: String,
    /// `*` for the whole message, the member that the body carries, or empty without a body.
    body: String,
}

impl Route {
    /// Parses a template: `"/" segments [":" custom_verb]`, where a segment is a literal, `*`, or `{field=segments}`.
    pub(crate) fn parse(rpc: Ident, method: &MethodDescriptor, binding: &HttpBinding) -> Result<Self> {
        let HttpBinding { verb, template, body } = binding;
        let member = |field: &str| -> Result<String> {
            let field = method.input().get_field_by_name(field).ok_or(format!("no field `{field}` for {template}"))?;
            Ok(field.json_name().to_owned())
        };
        let path = template.strip_prefix('/').ok_or("template: must start with `/`")?;
        let (mut path, custom_verb) = match path.rsplit_once(':') {
            Some((path, custom_verb)) if !custom_verb.contains(['/', '}']) => (path, custom_verb),
            _ => (path, ""),
        };
        let (mut segments, mut fields) = (Vec::new(), Vec::new());
        while !path.is_empty() {
            let (pattern, rest) = match path.strip_prefix('{') {
                Some(variable) => {
                    let (variable, rest) = variable.split_once('}').ok_or("template: unclosed `{`")?;
                    let (field, pattern) = variable.split_once('=').unwrap_or((variable, "*"));
                    fields.push((member(field)?, segments.len()..segments.len() + pattern.split('/').count()));
                    (pattern, rest)
                }
                None => path.split_at(path.find('/').unwrap_or(path.len())),
            };
            if pattern.contains("**") {
                return Err(format!("template {template}: `**` is not supported").into());
            }
            segments.extend(pattern.split('/').map(|segment| (segment != "*").then(|| segment.to_owned())));
            path = rest.strip_prefix('/').unwrap_or(rest);
        }
        let body = if matches!(body.as_str(), "" | "*") { body.clone() } else { member(body)? };
        Ok(Self { rpc, verb: verb.clone(), segments, fields, custom_verb: custom_verb.to_owned(), body })
    }

    /// Returns a sort key with literals before wildcards: `match` takes the first arm that fits.
    pub(crate) fn order(&self) -> Vec<bool> {
        self.segments.iter().map(Option::is_none).collect()
    }

    /// Generates an arm of a `match` over verb, segments and custom verb.
    pub(crate) fn arm(&self) -> TokenStream {
        let Self { rpc, verb, custom_verb, .. } = self;
        let pattern = |segment: &Option<String>| segment.as_ref().map_or(quote!(_), |literal| quote!(#literal));
        let segments = self.segments.iter().map(pattern);
        let fields = self.fields.iter().map(|(name, Range { start, end })| {
            if *end == *start + 1 {
                quote!((#name, segments[#start].to_owned()))
            } else {
                quote!((#name, segments[#start..#end].join("/")))
            }
        });
        let body = match self.body.as_str() {
            "" => quote!(BodyMapping::None),
            "*" => quote!(BodyMapping::Whole),
            name => quote!(BodyMapping::Field(#name)),
        };
        quote!((#verb, [#(#segments),*], #custom_verb) => Route { rpc: Rpc::#rpc, body: #body, fields: vec![#(#fields),*] })
    }
}
