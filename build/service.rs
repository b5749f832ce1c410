//! Code generation for a service beyond tonic's: the `Rpc` enum, routing of REST and JSON-RPC, validation, and clients.

use std::collections::BTreeSet;

use heck::{ToSnakeCase as _, ToUpperCamelCase as _};
use proc_macro2::{Ident, TokenStream};
use prost_reflect::{MethodDescriptor, ServiceDescriptor};
use quote::{format_ident, quote};

use super::{
    exceptions::SHARED,
    message::rust_type,
    routes::{HttpBinding, Route},
    schema::Schema,
};
use crate::Result;

impl Schema {
    /// Generates the module `bindings` of a package.
    pub(crate) fn bindings(&self, service: &ServiceDescriptor) -> Result<TokenStream> {
        let rpcs: Vec<_> = service.methods().map(Rpc).collect();
        let contract = Contract::new(service);
        let parts = [
            self.names(&rpcs)?,
            self.binding(&contract, &rpcs)?,
            contract.implementations(&rpcs),
            contract.clients(&rpcs),
            table(&rpcs),
        ];
        Ok(parts.into_iter().collect())
    }

    /// Generates `enum Rpc`.
    fn names(&self, rpcs: &[Rpc]) -> Result<TokenStream> {
        let variants: Vec<_> = rpcs.iter().map(Rpc::variant).collect();
        let names: Vec<_> = rpcs.iter().map(|rpc| rpc.0.name().to_owned()).collect();
        let streaming = rpcs.iter().filter(|rpc| rpc.0.is_server_streaming()).map(Rpc::variant);
        let has_empty_response = |rpc: &&Rpc| rpc.0.output().full_name() == "google.protobuf.Empty";
        let empty = rpcs.iter().filter(has_empty_response).map(Rpc::variant);
        let mut rules = Vec::new();
        for rpc in rpcs {
            let bindings = self.http_bindings(&rpc.0);
            let HttpBinding { verb, template, body } = bindings.first().ok_or("google.api.http: missing on an RPC")?;
            rules.push(quote!(HttpRule { verb: #verb, template: #template, body: #body }));
        }
        Ok(quote! {
            /// An RPC of the service.
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
            pub enum Rpc { #(#variants),* }

            impl Rpc {
                /// Every RPC, in the order of the proto file.
                pub const ALL: &'static [Self] = &[#(Self::#variants),*];

                /// Returns the name in the proto file, which is also the JSON-RPC method.
                pub const fn name(self) -> &'static str {
                    match self { #(Self::#variants => #names),* }
                }

                /// Returns the RPC with this name.
                pub fn from_name(name: &str) -> Option<Self> {
                    Some(match name { #(#names => Self::#variants,)* _ => return None })
                }

                /// Returns whether the response is a stream.
                pub const fn is_streaming(self) -> bool {
                    matches!(self, #(Self::#streaming)|*)
                }

                /// Returns whether the response is empty.
                pub const fn has_empty_response(self) -> bool {
                    matches!(self, #(Self::#empty)|*)
                }

                /// Returns the first HTTP binding, which is the one that clients use.
                pub const fn http_rule(self) -> HttpRule {
                    match self { #(Self::#variants => #rules),* }
                }
            }
        })
    }

    /// Generates `struct ServiceHandle`: the service as REST, JSON-RPC and tonic's server call it.
    fn binding(&self, contract: &Contract, rpcs: &[Rpc]) -> Result<TokenStream> {
        let mut routes = Vec::new();
        for rpc in rpcs {
            for binding in self.http_bindings(&rpc.0) {
                routes.push(Route::parse(rpc.variant(), &rpc.0, &binding)?);
            }
        }
        routes.sort_by_key(Route::order);
        let custom_verbs: BTreeSet<_> =
            routes.iter().map(|route| &route.custom_verb).filter(|custom_verb| !custom_verb.is_empty()).collect();
        let verbs: BTreeSet<_> = routes.iter().map(|route| &route.verb).collect();
        let arms = routes.iter().map(Route::arm);
        let calls = rpcs.iter().map(|rpc| {
            let (variant, method, kind) = (rpc.variant(), rpc.method(), rpc.kind());
            quote!(Rpc::#variant => #kind(request, |request| service.#method(request)).await)
        });
        let service = &contract.service;
        Ok(quote! {
            /// A sized handle to a service, as REST, JSON-RPC and tonic's server call it.
            #[derive(Clone)]
            pub struct ServiceHandle(pub Arc<dyn #service>);

            impl Dispatch for ServiceHandle {
                type Rpc = Rpc;

                const CUSTOM_VERBS: &'static [&'static str] = &[#(#custom_verbs),*];

                const VERBS: &'static [&'static str] = &[#(#verbs),*];

                fn rpc(name: &str) -> Option<Rpc> {
                    Rpc::from_name(name)
                }

                fn name(rpc: Rpc) -> &'static str {
                    rpc.name()
                }

                fn traits(rpc: Rpc) -> RpcTraits {
                    RpcTraits {
                        is_streaming: rpc.is_streaming(),
                        has_empty_response: rpc.has_empty_response(),
                        is_read: rpc.http_rule().verb == "GET",
                    }
                }

                fn route(verb: &str, segments: &[&str], custom_verb: &str) -> Option<Route<Rpc>> {
                    Some(match (verb, segments, custom_verb) { #(#arms,)* _ => return None })
                }

                // An `async fn` would store the request twice in its future.
                fn call(
                    &self,
                    rpc: Rpc,
                    request: Request<'_>,
                ) -> impl Future<Output = Result<Reply, Status>> + Send {
                    async move {
                        let service = &*self.0;
                        match rpc { #(#calls),* }
                    }
                }
            }
        })
    }
}

/// Rust names of a service.
struct Contract {
    /// Path of the service trait.
    service: TokenStream,
    /// Path of tonic's client, without its type parameter.
    client: TokenStream,
}

impl Contract {
    fn new(service: &ServiceDescriptor) -> Self {
        let (module, name) = (service.name().to_snake_case(), service.name().to_upper_camel_case());
        let (server, client) = (format_ident!("{module}_server"), format_ident!("{module}_client"));
        let (contract, client_type) = (format_ident!("{name}"), format_ident!("{name}Client"));
        Self { service: quote!(#server::#contract), client: quote!(#client::#client_type) }
    }

    /// Generates the service trait for `ServiceHandle`, and `struct ValidatedService`, which validates requests.
    fn implementations(&self, rpcs: &[Rpc]) -> TokenStream {
        let Self { service, .. } = self;
        let bound = rpcs.iter().map(|rpc| {
            let method = rpc.method();
            rpc.delegate(&quote! {
                strip_metadata_and_extensions(&mut request);
                self.0.#method(request)
            })
        });
        let checked = rpcs.iter().map(|rpc| {
            let method = rpc.method();
            rpc.delegate(&quote! {
                match crate::protocol::rpc::validate(&request) {
                    Ok(()) => self.0.#method(request),
                    Err(error) => Box::pin(std::future::ready(Err(error.into()))),
                }
            })
        });
        quote! {
            impl #service for ServiceHandle { #(#bound)* }

            /// A service that rejects requests with unset REQUIRED fields, unknown enum numbers or overlong ids and
            /// URIs. It wraps the implementation, so that every transport and in-process callers get equal errors.
            #[derive(Clone)]
            pub struct ValidatedService(pub Arc<dyn #service>);

            impl #service for ValidatedService { #(#checked)* }
        }
    }

    /// Generates the service trait for the clients, and `StreamItem` for the messages of their streams.
    fn clients(&self, rpcs: &[Rpc]) -> TokenStream {
        let Self { service, client } = self;
        let over_json = rpcs.iter().map(|rpc| {
            let (variant, kind) = (rpc.variant(), rpc.kind());
            rpc.implement(&quote!(self.#kind(Rpc::#variant.name(), Rpc::#variant.http_rule(), request).await))
        });
        let over_grpc = rpcs.iter().map(|rpc| {
            let (method, kind) = (rpc.method(), rpc.kind());
            rpc.implement(&quote! {
                let mut client = self.clone();
                grpc::#kind(request, |request| async move { #client::#method(&mut client, request).await }).await
            })
        });
        let plain: BTreeSet<_> = rpcs.iter().filter_map(Rpc::plain_item).collect();
        let plain = plain.iter().map(|name| format_ident!("{name}"));
        quote! {
            /// Client over JSON: HTTP+JSON or JSON-RPC.
            #[tonic::async_trait]
            impl<T: Transport> #service for Remote<T> { #(#over_json)* }

            /// Client over gRPC.
            #[tonic::async_trait]
            impl<T> #service for #client<T>
            where
                T: GrpcService<tonic::body::Body> + Clone + Send + Sync + 'static,
                T::Future: Send,
                T::Error: Into<StdError>,
                T::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
                <T::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
            { #(#over_grpc)* }

            #(impl StreamItem for #plain {})*
        }
    }
}

/// Generates `macro_rules! each_rpc`, which passes a row for each RPC, with its types, to another macro.
fn table(rpcs: &[Rpc]) -> TokenStream {
    let rows = rpcs.iter().map(|rpc| {
        let (kind, method, variant, (input, output)) = (rpc.kind(), rpc.method(), rpc.variant(), rpc.types());
        quote!(#kind #method #variant: #input => #output;)
    });
    quote! {
        /// Passes a row for each RPC to the macro `$row`: `unary` or `streaming`, the names in Rust and in the proto
        /// file, request type and response type.
        macro_rules! each_rpc {
            ($row:ident) => { $row! { #(#rows)* } };
        }
        pub(crate) use each_rpc;
    }
}

/// An RPC, and its names in the generated code.
struct Rpc(MethodDescriptor);

impl Rpc {
    fn variant(&self) -> Ident {
        format_ident!("{}", self.0.name().to_upper_camel_case())
    }

    fn method(&self) -> Ident {
        format_ident!("{}", self.0.name().to_snake_case())
    }

    fn kind(&self) -> Ident {
        if self.0.is_server_streaming() { format_ident!("streaming") } else { format_ident!("unary") }
    }

    /// Returns the item of the response stream if that is a prost struct, not a type in `SHARED`.
    fn plain_item(&self) -> Option<String> {
        let output = self.0.output();
        let plain = self.0.is_server_streaming() && SHARED.iter().all(|row| row.0 != output.full_name());
        plain.then(|| output.name().to_upper_camel_case())
    }

    fn types(&self) -> (TokenStream, TokenStream) {
        let output = self.0.output();
        let shared = SHARED.iter().find(|row| row.0 == output.full_name()).and_then(|row| row.1.parse().ok());
        let output = shared.unwrap_or_else(|| rust_type(&output));
        let boxed = self.0.is_server_streaming().then(|| quote!(crate::protocol::rpc::BoxStream<#output>));
        (rust_type(&self.0.input()), boxed.unwrap_or(output))
    }

    /// Generates this method of the service trait with `body` as an `async` body.
    fn implement(&self, body: &TokenStream) -> TokenStream {
        let (method, (input, output)) = (self.method(), self.types());
        quote! {
            async fn #method(&self, request: tonic::Request<#input>) -> Result<tonic::Response<#output>, Status> { #body }
        }
    }

    /// Generates this method of the service trait. `body` is its boxed future, so that `async_trait` adds no further
    /// box.
    fn delegate(&self, body: &TokenStream) -> TokenStream {
        let (method, (input, output)) = (self.method(), self.types());
        quote! {
            fn #method<'a, 'b>(&'a self, mut request: tonic::Request<#input>) -> ServiceFuture<'b, #output>
            where 'a: 'b, Self: 'b { #body }
        }
    }
}
