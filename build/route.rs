//! What `google.api.http` says of an RPC: which request lines are for it, and where in them its message is.

use std::ops::Range;

use proc_macro2::{Ident, TokenStream};
use prost_reflect::{DynamicMessage, MethodDescriptor, Value};
use quote::quote;

use super::schema::{EXTRA_BINDINGS, Schema};
use crate::Result;

/// A `google.api.http` binding, as it is written.
pub(crate) struct HttpBinding {
    pub(crate) verb: String,
    pub(crate) template: String,
    pub(crate) body: String,
}

impl Schema {
    /// The bindings of an RPC, its own first.
    pub(crate) fn http_bindings(&self, method: &MethodDescriptor) -> Vec<HttpBinding> {
        let options = method.options();
        let rule = options.get_extension(&self.http);
        let rule = rule.as_message();
        let text = |rule: &DynamicMessage, field: &str| {
            rule.get_field_by_name(field).and_then(|it| it.as_str().map(str::to_owned)).unwrap_or_default()
        };
        let read = |rule: &DynamicMessage| {
            let verb = ["get", "put", "post", "delete", "patch"].into_iter().find(|it| rule.has_field_by_name(it))?;
            Some(HttpBinding { verb: verb.to_uppercase(), template: text(rule, verb), body: text(rule, "body") })
        };
        let additional = rule.and_then(|it| it.get_field_by_name("additional_bindings"));
        let additional = additional.iter().filter_map(|it| it.as_list()).flatten().filter_map(Value::as_message);
        let extra = EXTRA_BINDINGS.iter().filter(|it| it.0 == method.full_name());
        let extra = extra.map(|it| it.1.map(str::to_owned));
        let extra = extra.map(|[verb, template, body]| HttpBinding { verb, template, body });
        rule.into_iter().chain(additional).filter_map(read).chain(extra).collect()
    }
}

/// One HTTP binding, such as `POST /{tenant}/tasks/{id=*}:cancel` with body `*`.
pub(crate) struct Route {
    rpc: Ident,
    pub(crate) verb: String,
    /// The path, an entry each segment; `None` matches any.
    segments: Vec<Option<String>>,
    /// The members of the message that the path carries, and the segments that each spans.
    fields: Vec<(String, Range<usize>)>,
    pub(crate) action: String,
    /// `*`, or the member that the body is.
    body: String,
}

impl Route {
    /// Reads a template: `"/" segments [":" action]`, where a segment is a literal, `*`, or `{field=segments}`.
    pub(crate) fn parse(rpc: Ident, method: &MethodDescriptor, binding: &HttpBinding) -> Result<Self> {
        let HttpBinding { verb, template, body } = binding;
        let member = |field: &str| -> Result<String> {
            let field = method.input().get_field_by_name(field).ok_or(format!("no field `{field}` for {template}"))?;
            Ok(field.json_name().to_owned())
        };
        let path = template.strip_prefix('/').ok_or("a template starts with `/`")?;
        let (mut path, action) = match path.rsplit_once(':') {
            Some((path, action)) if !action.contains(['/', '}']) => (path, action),
            _ => (path, ""),
        };
        let (mut segments, mut fields) = (Vec::new(), Vec::new());
        while !path.is_empty() {
            let (pattern, rest) = match path.strip_prefix('{') {
                Some(variable) => {
                    let (variable, rest) = variable.split_once('}').ok_or("unclosed `{` in a template")?;
                    let (field, pattern) = variable.split_once('=').unwrap_or((variable, "*"));
                    fields.push((member(field)?, segments.len()..segments.len() + pattern.split('/').count()));
                    (pattern, rest)
                }
                None => path.split_at(path.find('/').unwrap_or(path.len())),
            };
            if pattern.contains("**") {
                return Err(format!("`**` is not supported: {template}").into());
            }
            segments.extend(pattern.split('/').map(|it| (it != "*").then(|| it.to_owned())));
            path = rest.strip_prefix('/').unwrap_or(rest);
        }
        let body = if matches!(body.as_str(), "" | "*") { body.clone() } else { member(body)? };
        Ok(Self { rpc, verb: verb.clone(), segments, fields, action: action.to_owned(), body })
    }

    /// Puts literals before wildcards, as `match` takes the first arm that fits.
    pub(crate) fn order(&self) -> Vec<bool> {
        self.segments.iter().map(Option::is_none).collect()
    }

    /// As an arm of a `match` over a request line.
    pub(crate) fn arm(&self) -> TokenStream {
        let Self { rpc, verb, action, .. } = self;
        let segments = self.segments.iter().map(|it| it.as_ref().map_or(quote!(_), |literal| quote!(#literal)));
        let fields = self.fields.iter().map(|(name, Range { start, end })| {
            if *end == *start + 1 {
                quote!((#name, segments[#start].to_owned()))
            } else {
                quote!((#name, segments[#start..#end].join("/")))
            }
        });
        let body = match self.body.as_str() {
            "" => quote!(Body::None),
            "*" => quote!(Body::Whole),
            name => quote!(Body::Field(#name)),
        };
        quote!((#verb, [#(#segments),*], #action) => Route { rpc: Rpc::#rpc, body: #body, fields: vec![#(#fields),*] })
    }
}
