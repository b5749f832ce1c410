//! Everything about a service that is neither a message nor gRPC: its RPCs by name, and what stands before and behind
//! its trait.

use std::collections::BTreeSet;

use heck::{ToSnakeCase as _, ToUpperCamelCase as _};
use proc_macro2::{Ident, TokenStream};
use prost_reflect::{MethodDescriptor, ServiceDescriptor};
use quote::{format_ident, quote};

use super::{
    message::rust_type,
    route::{HttpBinding, Route},
    schema::{SHARED, Schema},
};
use crate::Result;

impl Schema {
    /// The module `bindings` of a package.
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

    /// `enum Rpc`.
    fn names(&self, rpcs: &[Rpc]) -> Result<TokenStream> {
        let variants: Vec<_> = rpcs.iter().map(Rpc::variant).collect();
        let names: Vec<_> = rpcs.iter().map(|it| it.0.name().to_owned()).collect();
        let streaming = rpcs.iter().filter(|it| it.0.is_server_streaming()).map(Rpc::variant);
        let silent = rpcs.iter().filter(|it| it.0.output().full_name() == "google.protobuf.Empty").map(Rpc::variant);
        let mut rules = Vec::new();
        for rpc in rpcs {
            let bindings = self.http_bindings(&rpc.0);
            let HttpBinding { verb, template, body } = bindings.first().ok_or("every RPC has an HTTP binding")?;
            rules.push(quote!(HttpRule { verb: #verb, template: #template, body: #body }));
        }
        Ok(quote! {
            /// An RPC, by its name in the proto file.
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
            pub enum Rpc { #(#variants),* }

            impl Rpc {
                /// Every RPC, in the order of the proto file.
                pub const ALL: &'static [Self] = &[#(Self::#variants),*];

                /// Its name, which is its JSON-RPC method.
                pub const fn name(self) -> &'static str {
                    match self { #(Self::#variants => #names),* }
                }

                /// The RPC of this name.
                pub fn from_name(name: &str) -> Option<Self> {
                    Some(match name { #(#names => Self::#variants,)* _ => return None })
                }

                /// Answers with a stream.
                pub const fn is_streaming(self) -> bool {
                    matches!(self, #(Self::#streaming)|*)
                }

                /// Answers with nothing.
                pub const fn is_silent(self) -> bool {
                    matches!(self, #(Self::#silent)|*)
                }

                /// The first of its HTTP bindings, which is the one that clients use.
                pub const fn http_rule(self) -> HttpRule {
                    match self { #(Self::#variants => #rules),* }
                }
            }
        })
    }

    /// `struct ServiceHandle`: the service as REST, JSON-RPC and tonic's server see it.
    fn binding(&self, contract: &Contract, rpcs: &[Rpc]) -> Result<TokenStream> {
        let mut routes = Vec::new();
        for rpc in rpcs {
            for binding in self.http_bindings(&rpc.0) {
                routes.push(Route::parse(rpc.variant(), &rpc.0, &binding)?);
            }
        }
        routes.sort_by_key(Route::order);
        let actions: BTreeSet<_> = routes.iter().map(|it| &it.action).filter(|it| !it.is_empty()).collect();
        let verbs: BTreeSet<_> = routes.iter().map(|it| &it.verb).collect();
        let arms = routes.iter().map(Route::arm);
        let calls = rpcs.iter().map(|rpc| {
            let (variant, method, kind) = (rpc.variant(), rpc.method(), rpc.kind());
            quote!(Rpc::#variant => #kind(request, |it| service.#method(it)).await)
        });
        let service = &contract.service;
        Ok(quote! {
            /// A service behind a pointer: as REST and JSON-RPC see it, and of a size, as tonic's server wants it.
            #[derive(Clone)]
            pub struct ServiceHandle(pub Arc<dyn #service>);

            impl Dispatch for ServiceHandle {
                type Rpc = Rpc;

                const ACTIONS: &'static [&'static str] = &[#(#actions),*];

                const VERBS: &'static [&'static str] = &[#(#verbs),*];

                fn rpc(name: &str) -> Option<Rpc> {
                    Rpc::from_name(name)
                }

                fn is_streaming(rpc: Rpc) -> bool {
                    rpc.is_streaming()
                }

                fn is_silent(rpc: Rpc) -> bool {
                    rpc.is_silent()
                }

                fn is_read(rpc: Rpc) -> bool {
                    rpc.http_rule().verb == "GET"
                }

                fn route(verb: &str, segments: &[&str], action: &str) -> Option<Route<Rpc>> {
                    Some(match (verb, segments, action) { #(#arms,)* _ => return None })
                }

                // An `async fn` would keep the request twice.
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

/// The Rust names of a service.
struct Contract {
    /// The trait.
    service: TokenStream,
    /// tonic's client, without its parameter.
    client: TokenStream,
}

impl Contract {
    fn new(service: &ServiceDescriptor) -> Self {
        let (module, name) = (service.name().to_snake_case(), service.name().to_upper_camel_case());
        let (server, client) = (format_ident!("{module}_server"), format_ident!("{module}_client"));
        let (contract, client_type) = (format_ident!("{name}"), format_ident!("{name}Client"));
        Self { service: quote!(#server::#contract), client: quote!(#client::#client_type) }
    }

    /// The trait for `ServiceHandle`, and `struct Checked`: what stands before a service.
    fn implementations(&self, rpcs: &[Rpc]) -> TokenStream {
        let Self { service, .. } = self;
        let bound = rpcs.iter().map(|rpc| {
            let method = rpc.method();
            rpc.delegate(&quote! {
                admit(&mut request);
                self.0.#method(request)
            })
        });
        let checked = rpcs.iter().map(|rpc| {
            let method = rpc.method();
            rpc.delegate(&quote! {
                match crate::check::check(&request) {
                    Ok(()) => self.0.#method(request),
                    Err(error) => Box::pin(std::future::ready(Err(error.into()))),
                }
            })
        });
        quote! {
            impl #service for ServiceHandle { #(#bound)* }

            /// A service that hears only requests whose REQUIRED fields are set and whose enum numbers exist. It stands
            /// before the implementation, so every door refuses alike, the one in process included.
            #[derive(Clone)]
            pub struct Checked(pub Arc<dyn #service>);

            impl #service for Checked { #(#checked)* }
        }
    }

    /// The trait for agents elsewhere, and what their streams carry.
    fn clients(&self, rpcs: &[Rpc]) -> TokenStream {
        let Self { service, client } = self;
        let over_json = rpcs.iter().map(|rpc| {
            let (variant, kind) = (rpc.variant(), rpc.kind());
            rpc.implement(&quote!(self.#kind(Rpc::#variant.name(), Rpc::#variant.http_rule(), request).await))
        });
        let over_grpc = rpcs.iter().map(|rpc| {
            let (method, kind) = (rpc.method(), rpc.kind());
            rpc.implement(&quote!(grpc::#kind(#client::#method(&mut self.clone(), grpc::outbound(request)).await)))
        });
        let plain: BTreeSet<_> = rpcs.iter().filter_map(Rpc::plain_item).collect();
        let plain = plain.iter().map(|it| format_ident!("{it}"));
        quote! {
            /// An agent elsewhere, spoken to in JSON.
            #[tonic::async_trait]
            impl<T: Transport> #service for Remote<T> { #(#over_json)* }

            /// An agent elsewhere, spoken to over gRPC.
            #[tonic::async_trait]
            impl<T> #service for #client<T>
            where
                T: GrpcService<tonic::body::Body> + Clone + Send + Sync + 'static,
                T::Future: Send,
                T::Error: Into<StdError>,
                T::ResponseBody: HttpBody<Data = Bytes> + Send + 'static,
                <T::ResponseBody as HttpBody>::Error: Into<StdError> + Send,
            { #(#over_grpc)* }

            #(impl Item for #plain {})*
        }
    }
}

/// `macro_rules! each_rpc`: what is the same at every RPC, and needs the types of each, is a macro over these rows.
fn table(rpcs: &[Rpc]) -> TokenStream {
    let rows = rpcs.iter().map(|rpc| {
        let (kind, method, variant, (input, output)) = (rpc.kind(), rpc.method(), rpc.variant(), rpc.types());
        quote!(#kind #method #variant: #input => #output;)
    });
    quote! {
        /// A row for each RPC, given to the macro of this name: how it answers, its names in Rust and in the proto file,
        /// what is asked and what is answered.
        macro_rules! each_rpc {
            ($row:ident) => { $row! { #(#rows)* } };
        }
        pub(crate) use each_rpc;
    }
}

/// A method of the service, and what it is called in Rust.
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

    /// The item of its stream, where that is the bare message.
    fn plain_item(&self) -> Option<String> {
        let output = self.0.output();
        let plain = self.0.is_server_streaming() && SHARED.iter().all(|it| it.0 != output.full_name());
        plain.then(|| output.name().to_upper_camel_case())
    }

    fn types(&self) -> (TokenStream, TokenStream) {
        let output = self.0.output();
        let shared = SHARED.iter().find(|it| it.0 == output.full_name()).and_then(|it| it.1.parse().ok());
        let output = shared.unwrap_or_else(|| rust_type(&output));
        let boxed = self.0.is_server_streaming().then(|| quote!(crate::contract::BoxStream<#output>));
        (rust_type(&self.0.input()), boxed.unwrap_or(output))
    }

    /// This method as the service trait has it, with `body`.
    fn implement(&self, body: &TokenStream) -> TokenStream {
        let (method, (input, output)) = (self.method(), self.types());
        quote! {
            async fn #method(&self, request: tonic::Request<#input>) -> Result<tonic::Response<#output>, Status> { #body }
        }
    }

    /// The same, where `body` is a future of that result: what `async_trait` would make of it, without its box.
    fn delegate(&self, body: &TokenStream) -> TokenStream {
        let (method, (input, output)) = (self.method(), self.types());
        quote! {
            fn #method<'a, 'b>(&'a self, mut request: tonic::Request<#input>) -> ResponseFuture<'b, #output>
            where 'a: 'b, Self: 'b { #body }
        }
    }
}
