//! `a2a serve`: configures and runs the server until a signal stops it.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal as _},
    net::{IpAddr, UdpSocket},
    path::{Path, PathBuf},
    process,
    sync::Arc,
    thread,
    time::Duration,
};

use anyhow::Context as _;
use tokio::{runtime::Handle, sync::oneshot, time::timeout};
use tracing::Level;

use self::{
    agent::AgentSource,
    banner::{Banner, reachable},
};
use super::{OutputError, flags::Serve, say, status, upstream::Gateway, warn};
use crate::{
    base::jws::SigningKey,
    cli::{
        config::{
            self, AgentConfig, AuthConfig, AuthRequire, Certificate, ClusterWake, Config, HealthReady, LoadedConfig,
            MIN_TOKEN, OfferedExtension, Origin, StoreConfig, TlsConfig,
        },
        otlp::{self, Exporter},
        prometheus,
    },
    engine::agent::DynAgent,
    server::{self, ClientAuth, Console, Modes, Server, Signals, Tls},
    service::{
        auth::{self, AllOf, AnyOf, Bearer, Jwt, JwtOptions, MutualTls, Scopes, TokenFile},
        card::ScopedSkills,
        push::{Algorithm, PushOptions, SigningKeys, WebhookCredentials},
    },
    store::{
        Store,
        memory::Memory,
        postgres::{self, Postgres},
        sqlite::{Options, Sqlite},
    },
};

mod agent;
mod banner;

/// Minimum of `limits.memory`, in bytes, which requests of usual sizes do not exceed.
const MIN_MEMORY: usize = 1 << 20;

/// Minimum of `cluster.lease`: it is renewed three times in that time.
const MIN_LEASE: Duration = Duration::from_secs(3);

/// Minimum length of `cluster.key`, in characters.
const MIN_CLUSTER_KEY: usize = 32;

/// Maximum time that the end of the server waits for work that blocks, such as the deletion of temporary files.
const BLOCKING_GRACE: Duration = Duration::from_secs(1);

/// Serves until SIGINT or SIGTERM, then drains. A second signal exits at once with code 130 or 143.
pub(super) fn run(arguments: &Serve) -> anyhow::Result<()> {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    return_large_buffers();
    #[cfg(target_os = "linux")]
    hide_from_commands();
    let loaded = config::load(arguments.config.as_deref(), &arguments.flags())?;
    if arguments.print_config {
        for warning in &loaded.warnings {
            warn(warning);
        }
        say(&loaded.print())?;
        return Ok(());
    }
    loaded.check_kinds()?;
    if arguments.official.echo && !(loaded.agents.is_empty() && AgentSource::of(&loaded.config)?.is_demo()) {
        return Err(config::Error::new("--echo: the configuration has another agent; remove one of them").into());
    }
    let token_origin = loaded.origin("token").clone();
    let otlp_origin = loaded.origin("otlp.endpoint").clone();
    let has_default_store = *loaded.origin("store.path") == Origin::Default;
    let LoadedConfig { config, warnings, agents, file, .. } = loaded;
    let mut filter = config.log.filter.targets.clone();
    if config.log.wire {
        // `log.wire` takes precedence over the log filter.
        filter = filter.with_target(crate::transport::pipeline::wire_log::TARGET, Level::INFO);
    }
    crate::cli::log::init(config.log.format, filter);
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    agents.iter().map(|agent| &agent.config).chain([&config]).for_each(Config::warn_of_shared_files);
    guard_public(&config, &token_origin)?;
    let is_dev = arguments.official.dev;
    guard_dev(&config, is_dev)?;
    if config.connections.memory < MIN_MEMORY {
        return Err(config::Error::new(format!("limits.memory: the minimum is {MIN_MEMORY} bytes")).into());
    }
    guard_unauthenticated(&config, &agents)?;
    raise_descriptor_limit(&config);
    let schemes = authentication(&config)?;
    let tls = tls(&config)?;
    let recorder = prometheus::install()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let exporter = Exporter::start(&config.otlp, runtime.handle())?;
    let tracing = exporter.as_ref().map(|exporter| exporter.tracing.clone()).unwrap_or_default();
    // Before the server listens, because opening the store may migrate it, which blocks.
    let hosted: Vec<_> = match &*agents {
        [] => vec![(None, &config)],
        agents => agents.iter().map(|agent| (Some(agent), &agent.config)).collect(),
    };
    let migrates = arguments.migrate.is_none();
    let prepared =
        hosted.iter().map(|(named, config)| of_agent(*named, Prepared::new(config, migrates, runtime.handle())));
    let prepared = prepared.collect::<anyhow::Result<Vec<_>>>()?;
    let operator_token = status::new_token()?;
    let store_file = prepared.first().and_then(|agent| agent.file.clone());
    let mut details = String::new();
    for agent in &prepared {
        if !details.contains(&agent.line) {
            details += &agent.line;
        }
    }
    if has_default_store && prepared.iter().any(|agent| agent.file.is_some()) {
        details += "  (--store memory keeps them in memory only)\n";
    }
    if let Some(endpoint) = &config.otlp.endpoint {
        _ = writeln!(details, "traces are exported to {} ({otlp_origin})", endpoint.0);
    }
    let served = runtime.block_on(async {
        let mut gateways = Vec::new();
        let mut prepared = prepared.into_iter();
        let (first, gateway, lines) = prepared.next().context("there is no agent")?.server(agents.first()).await?;
        gateways.extend(gateway);
        details += &lines;
        let first = first.expose_causes(is_dev);
        let mut server = if let Some(named) = agents.first() { first.catalog_name(&named.name) } else { first };
        // Agents below a path have no URL of their own.
        if let Some(url) = &config.public_url {
            server = server.url(&*url.0);
        }
        for (agent, prepared) in agents.iter().skip(1).zip(prepared) {
            let (other, gateway, lines) = prepared.server(Some(agent)).await?;
            gateways.extend(gateway);
            details += &lines;
            server = server.agent(&agent.name, other.expose_causes(is_dev));
        }
        let server = match (schemes, config.auth.require) {
            (Some(schemes), AuthRequire::Any) => server.authenticator(schemes),
            (Some(schemes), AuthRequire::All) => server.authenticator(AllOf::from(schemes)),
            (None, _) => server,
        };
        let server = if let Some(tls) = tls.clone() { server.tls(tls) } else { server };
        tokio::spawn(prometheus::keep_up(recorder.clone()));
        let server = server.metrics(move || recorder.render()).operator_token(operator_token.clone()).tracing(tracing);
        prometheus::record_build();
        let (first, others) = config.listen.0.split_first().context("there is no listen address")?;
        let context = |addr| move || format!("can't listen on {addr}; set another address with --listen");
        let mut bound = server.bind(first).await.with_context(context(first))?;
        let url = bound.url().replace(&bound.addr().to_string(), &reachable(bound.addr()));
        let access =
            store_file.map(|store| status::AccessFile::create(&store, url.clone(), &operator_token)).transpose();
        let _access = access.inspect_err(|error| tracing::warn!("`a2a status` has no access to this server: {error}"));
        for gateway in gateways {
            gateway.spawn_refresh(bound.addr());
        }
        let mut addresses = String::new();
        for addr in others {
            let addr = bound.add(addr).await.with_context(context(addr))?;
            _ = writeln!(addresses, "also on {}", bound.url_of(addr).replace(&addr.to_string(), &reachable(addr)));
        }
        let metrics = match config.metrics_listen {
            Some(addr) => {
                let context = || format!("can't listen on {addr}; set another address with --metrics-listen");
                let addr = bound.metrics(addr).await.with_context(context)?;
                format!("metrics on {}/metrics\n", bound.url_of(addr))
            }
            None => String::new(),
        };
        let stop = stop_signal()?;
        let is_quiet = arguments.official.quiet;
        if !is_quiet {
            let mut paths = Vec::new();
            for (named, config) in hosted {
                let description = AgentSource::of(config)?.description(config);
                _ = match named {
                    Some(AgentConfig { name, .. }) => writeln!(details, "agent {name} at /{name}: {description}"),
                    None => writeln!(details, "the agent is {description}"),
                };
                paths.push(named.map(|agent| format!("/{}", agent.name)).unwrap_or_default());
            }
            if is_dev {
                details += "--dev: status messages of failed tasks have the causes of the failures\n";
            }
            let details = addresses + &metrics + &details;
            let banner = Banner {
                config: &config,
                addr: bound.addr(),
                tls: tls.as_ref(),
                client_auth: if config.tls.client_ca.is_some() { client_auth(&config) } else { ClientAuth::Off },
                token_origin: &token_origin,
                file: file.as_deref(),
                paths: &paths,
            };
            announce(&banner.text(&details));
            // Not in logs, which others may read.
            if io::stdout().is_terminal() {
                announce(&format!(
                    "For the operator, until the server stops: {url}/#operator={}\n",
                    operator_token.expose()
                ));
            }
            if agents.is_empty() && AgentSource::of(&config)?.is_demo() {
                announce("Send /help instead of hello for the other commands of the demo agent. ");
            }
            announce("Ctrl-C stops the server.\n");
        }
        let source = bound.http.metrics_source();
        let metrics = exporter.as_ref().zip(source).map(|(exporter, source)| Arc::new(exporter.metrics(source)));
        if let Some(metrics) = metrics.clone() {
            tokio::spawn(async move { metrics.run().await });
        }
        bound
            .run_until(async move {
                // An error: the thread has ended, and no signal will come.
                if stop.await.is_err() {
                    std::future::pending::<()>().await;
                }
                if !is_quiet {
                    announce("stopping, after running turns if there are any; a second signal stops at once\n");
                }
            })
            .await;
        if let Some(metrics) = metrics {
            _ = timeout(otlp::STOP, metrics.export()).await;
        }
        Ok(())
    });
    if let Some(exporter) = exporter {
        exporter.stop();
    }
    runtime.shutdown_timeout(BLOCKING_GRACE);
    served
}

/// Returns a receiver of the first signal. The second one ends the process. A thread of its own waits for them, so that nothing
/// that blocks the server stops it.
fn stop_signal() -> io::Result<oneshot::Receiver<i32>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (first, stop) = oneshot::channel();
    // The signals replace their default action from now on.
    let mut signals = {
        let _context = runtime.enter();
        Signals::listen()
    };
    let wait = async move {
        // Fails if the server has ended by itself.
        _ = first.send(signals.next().await);
        exit_now(signals.next().await);
    };
    thread::Builder::new().name("signals".to_owned()).spawn(move || runtime.block_on(wait))?;
    Ok(stop)
}

/// Prints a message to stdout. A server does not need its stdout, so that a failure is only a warning.
fn announce(text: &str) {
    if let Err(error @ OutputError::Failed(_)) = say(text) {
        tracing::warn!("{error}");
    }
}

/// Parts of the server of an agent that block while they are made.
struct Prepared<'a> {
    config: &'a Config,
    source: AgentSource<'a>,
    store: Arc<dyn Store>,
    /// File of the store, if it has one.
    file: Option<PathBuf>,
    push: PushOptions,
    /// First key in `signing_keys`, which signs the card.
    card_key: Option<SigningKey>,
    /// Line about the store, for the startup message.
    line: String,
}

impl<'a> Prepared<'a> {
    fn new(config: &'a Config, migrates: bool, runtime: &Handle) -> anyhow::Result<Self> {
        let source = AgentSource::of(config)?;
        let (store, file, line) = open_store(config, migrates, runtime)?;
        let context = "can't read the file in signing_keys";
        let card_key = config.signing_keys.as_deref().map(SigningKey::read).transpose().context(context)?;
        let push = push_options(config, file.as_deref())?;
        Ok(Self { config, source, store, file, push, card_key, line })
    }

    /// Creates the server of the agent, which is one of several if it has a name, the gateway if it is one, and further lines for the
    /// startup message.
    async fn server(self, named: Option<&AgentConfig>) -> anyhow::Result<(Server, Option<Gateway>, String)> {
        let Self { config, source, store, file, push, card_key, .. } = self;
        let (agent, gateway, lines) = of_agent(named, source.create(config, file.as_deref()).await)?;
        let mut server = server(agent, store, push, config).agent_kind(source.kind());
        if let Some(gateway) = &gateway {
            server = server.card_updates(gateway.updates.subscribe());
        }
        if let Some(named) = named {
            server = server.require_scopes(&named.scopes);
            // The card of another agent, or in a file, has a name.
            if config.card.name.is_none() && config.upstream.url.is_none() && config.card.file.is_none() {
                server = server.name(&named.name);
            }
        }
        let server = if let Some(key) = card_key { server.sign_card(key) } else { server };
        let server = if let Some(key) = cluster_key(config)? { server.cluster_key(key) } else { server };
        Ok((server, gateway, lines))
    }
}

/// Adds the name of the agent to an error, if it is one of several.
fn of_agent<T>(named: Option<&AgentConfig>, result: anyhow::Result<T>) -> anyhow::Result<T> {
    let Some(AgentConfig { name, .. }) = named else { return result };
    result.with_context(|| format!("the agent {name} can't be started"))
}

/// Creates the server from the configuration.
fn server(agent: Arc<dyn DynAgent>, store: Arc<dyn Store>, push: PushOptions, config: &Config) -> Server {
    let is_local = !config.listen.0.iter().any(|addr| server::is_public(*addr));
    let server = Server::new(agent)
        .store(store)
        .limits(config.limits())
        .retention(config.retention())
        .body_bytes(config.connections.body_bytes)
        .connections(config.connections.count)
        .incoming_bytes(config.connections.memory / 4)
        .outgoing_bytes(config.connections.memory / 8 * 3)
        .connections_per_peer(config.connections.per_peer)
        .request_rate_per_peer(config.connections.request_rate_per_peer)
        .connection_idle_timeout(config.connections.idle_timeout)
        .drain_grace(config.connections.shutdown_grace)
        .health_interval(config.health.interval)
        .ready_with_agents(config.health.ready == HealthReady::Agents)
        .forward_headers(
            config.upstream.url.iter().flat_map(|_| &config.upstream.forward).map(|header| header.0.clone()),
        )
        .strict_version(config.strict)
        .strict_extensions(config.strict)
        .modes(Modes::default().strict_media_types(config.strict))
        .insecure(config.insecure)
        .protocols(config.protocols)
        .idempotency_default_key(config.idempotency)
        .resume(config.extensions.contains(&OfferedExtension::Resume))
        .secret_parts(config.extensions.contains(&OfferedExtension::SecretParts))
        .log_wire(config.log.wire)
        .push(config.push.enabled)
        .push_options(push)
        .card(config.card())
        .protect_card(config.card.protected)
        .trusted_proxies(config.trusted_proxies.iter().copied())
        .allowed_hosts(config.allowed_hosts.iter().cloned())
        .cors_origins(config.cors_origins.iter().cloned())
        .v03_file_bytes(config.v03_file_bytes)
        .console(config.console.unwrap_or(if is_local { Console::Full } else { Console::Developer }))
        .docs(config.docs.unwrap_or(is_local));
    let skills = config.card.skills.iter().flat_map(|skills| &skills.value).filter(|skill| skill.is_extended());
    let mut skills = skills.cloned().peekable();
    let server = if skills.peek().is_some() { server.extended_card(skills.collect::<ScopedSkills>()) } else { server };
    server.extended_card_access(config.card.extended)
}

/// Returns the TLS of the configuration, if there is any.
fn tls(config: &Config) -> anyhow::Result<Option<Tls>> {
    let TlsConfig { cert, key, client_ca } = &config.tls;
    let conflict = match (cert, key) {
        (None, None) if client_ca.is_some() => {
            Some("tls.client_ca: client certificates need TLS; set tls.cert and tls.key")
        }
        (Some(Certificate::SelfSigned), Some(_)) => {
            Some("tls.key: tls.cert is self_signed, which has a key of its own; remove tls.key")
        }
        (Some(Certificate::File(_)), None) => Some("tls.key: is missing; tls.cert needs the private key"),
        (None, Some(_)) => Some("tls.cert: is missing; tls.key needs the certificate"),
        _ => None,
    };
    if let Some(why) = conflict {
        return Err(config::Error::new(why).into());
    }
    let tls = match (cert, key) {
        (Some(Certificate::SelfSigned), _) => {
            let host =
                config.public_url.as_ref().and_then(|url| url.0.parse::<http::Uri>().ok()?.host().map(str::to_owned));
            let addresses = config.listen.0.iter().filter_map(|addr| own_address(addr.ip()));
            let names = host.into_iter().chain(addresses.map(|ip| ip.to_string()));
            Tls::self_signed(names).context("can't generate a certificate (tls.cert)")?
        }
        (Some(Certificate::File(cert)), Some(key)) => {
            Tls::from_files(cert, key).context("can't use tls.cert and tls.key")?
        }
        _ => return Ok(None),
    };
    let Some(authorities) = client_ca else { return Ok(Some(tls)) };
    let tls = tls.client_auth(authorities, client_auth(config));
    Ok(Some(tls.context("can't use tls.client_ca")?))
}

/// Returns the address at which other machines reach a listen address. For all addresses of this machine, it is the one that
/// reaches others; no packet is sent to find it.
fn own_address(ip: IpAddr) -> Option<IpAddr> {
    let any = if ip.is_ipv4() { "192.0.2.1:9" } else { "[2001:db8::1]:9" };
    let route = || UdpSocket::bind((ip, 0)).and_then(|socket| socket.connect(any).and_then(|()| socket.local_addr()));
    if ip.is_unspecified() { route().ok().map(|addr| addr.ip()) } else { Some(ip) }
}

/// Returns whether clients need a certificate: not if they can be authenticated in another way.
fn client_auth(config: &Config) -> ClientAuth {
    let is_alternative =
        config.auth.mtls.is_some() && config.auth.require == AuthRequire::Any && config.has_other_authentication();
    if is_alternative { ClientAuth::Optional } else { ClientAuth::Required }
}

/// Creates the authentication schemes of the configuration. `None` if callers are anonymous.
fn authentication(config: &Config) -> anyhow::Result<Option<AnyOf>> {
    let mut schemes = auth::any();
    let AuthConfig { tokens, mtls, mtls_names, mtls_scopes, jwt, .. } = &config.auth;
    if let Some(token) = &config.token {
        schemes = schemes.or(Bearer::of(token.credential_of_callers()));
    }
    if let Some(path) = tokens {
        let file = TokenFile::open(path);
        schemes = schemes.or(file.context("can't read the file in auth.tokens; `a2a token new` creates it")?);
    }
    if let Some(issuer) = &jwt.issuer {
        let scopes = Some(jwt.scope_claim.clone()).filter(|name| !name.is_empty());
        let options = JwtOptions::new(issuer, jwt.audience.iter().cloned())
            .owner_claim(&jwt.owner_claim)
            .tenant_claim(jwt.tenant_claim.clone())
            .scope_claim(scopes);
        let options = match &jwt.jwks {
            Some(url) if url.contains("://") => options.jwks_url(url),
            Some(path) => options.jwks_file(path),
            None => options,
        };
        let jwt = Jwt::new(options).map_err(|error| config::Error::new(format!("auth.jwt: {error}")))?;
        schemes = schemes.or(jwt);
    }
    if let Some(name) = mtls {
        if config.tls.client_ca.is_none() {
            let why = "auth.mtls needs client certificates: set tls.client_ca";
            return Err(config::Error::new(why.to_owned()).into());
        }
        let mut mutual_tls = MutualTls::new(*name);
        if !mtls_names.is_empty() {
            mutual_tls = mutual_tls.names(mtls_names.iter().cloned());
        }
        if !mtls_scopes.is_empty() {
            mutual_tls = mutual_tls.scopes(Scopes::Only(mtls_scopes.iter().cloned().collect()));
        }
        schemes = schemes.or(mutual_tls);
    }
    Ok((!schemes.is_empty()).then_some(schemes))
}

/// Extension of the name of the store's file for the generated keys.
const KEYS_EXTENSION: &str = "keys.pem";

/// Returns the options of push notifications, with keys and credentials. `store` is the file of the store, which is open: no other
/// server generates keys for it at the same time.
fn push_options(config: &Config, store: Option<&Path>) -> anyhow::Result<PushOptions> {
    let options = config.push.options.clone();
    let keys = match (&config.signing_keys, store) {
        (Some(file), _) => SigningKeys::read(file).context("can't read the file in signing_keys")?,
        (None, _) if !config.push.enabled => return Ok(options),
        (None, Some(store)) => {
            let context = "can't read or create the file with the keys of push notifications; set signing_keys";
            SigningKeys::read_or_generate(&store.with_added_extension(KEYS_EXTENSION)).context(context)?
        }
        (None, None) => SigningKeys::generate(Algorithm::default())?,
    };
    let shared = |credentials| -> Arc<dyn WebhookCredentials> { Arc::new(credentials) };
    let credentials = config.push.credentials.credentials()?.map(shared);
    Ok(options.keys(Some(keys)).credentials(credentials))
}

/// Opens the configured store. Returns it with its file, if it has one, and a line for the startup message.
fn open_store(
    config: &Config,
    migrates: bool,
    runtime: &Handle,
) -> anyhow::Result<(Arc<dyn Store>, Option<PathBuf>, String)> {
    let StoreConfig { path, durability, max_size, max_tasks, max_tasks_per_owner, .. } = &config.store;
    match path {
        config::StorePath::Memory => {
            let mut memory = max_tasks.map_or_else(Memory::default, Memory::with_max_tasks);
            if let Some(count) = *max_tasks_per_owner {
                memory = memory.with_max_tasks_per_owner(count);
            }
            let line = "tasks are stored in memory and lost when this process ends\n".to_owned();
            Ok((Arc::new(memory), None, line))
        }
        config::StorePath::Sqlite(path) => {
            let mut options = Options::default();
            options.durability = *durability;
            options.max_tasks = max_tasks.unwrap_or(options.max_tasks);
            options.max_tasks_per_owner = *max_tasks_per_owner;
            options.max_bytes = max_size.map(|size| size.0.try_into()).transpose()?;
            let store = Sqlite::open(path, options).context("can't open the store; set another one with --store")?;
            let line = format!("tasks are stored in {}\n", store.path().display());
            let file = Some(store.path().to_owned());
            Ok((Arc::new(store), file, line))
        }
        config::StorePath::Postgres(url) => {
            let options = postgres_options(config)?.migrates(migrates);
            let store = runtime.block_on(Postgres::open(url.expose(), &options));
            let store = store.with_context(|| format!("can't open the store {url}; set another one with --store"))?;
            let line = format!("tasks are stored in {url}, which other servers may share\n");
            Ok((Arc::new(store), None, line))
        }
    }
}

/// Returns the options of a database that servers share.
fn postgres_options(config: &Config) -> Result<postgres::Options, config::Error> {
    let (StoreConfig { prepared, listen, max_tasks, max_tasks_per_owner, .. }, cluster) =
        (&config.store, &config.cluster);
    if config.push.enabled && config.signing_keys.is_none() {
        let why = "signing_keys: servers that share a database need the same keys for push notifications; set it to a file with \
            a private key, or disable them (push.enabled = false)\n\
            note: `openssl genpkey -algorithm ed25519 -out keys.pem` makes one";
        return Err(config::Error::new(why));
    }
    if cluster.lease < MIN_LEASE {
        return Err(config::Error::new(format!("cluster.lease: the minimum is {} s", MIN_LEASE.as_secs())));
    }
    let mut options = postgres::Options::default()
        .name(host_name())
        .lease(cluster.lease)
        .notifies(cluster.wake == ClusterWake::Notify)
        .prepared(*prepared)
        .listen(listen.as_ref().map(|url| url.expose().to_owned()))
        .max_tasks_per_owner(*max_tasks_per_owner);
    options.max_tasks = max_tasks.unwrap_or(options.max_tasks);
    Ok(options)
}

fn host_name() -> Box<str> {
    #[cfg(unix)]
    return rustix::system::uname().nodename().to_string_lossy().into();
    #[cfg(not(unix))]
    std::env::var("COMPUTERNAME").unwrap_or_default().into()
}

/// Returns the secret of a cluster as a key.
fn cluster_key(config: &Config) -> Result<Option<[u8; 32]>, config::Error> {
    let Some(secret) = &config.cluster.key else { return Ok(None) };
    let text = secret.value.expose();
    if text.len() < MIN_CLUSTER_KEY {
        let why = format!(
            "cluster.key: is shorter than {MIN_CLUSTER_KEY} characters\nnote: `openssl rand -hex 32` makes one"
        );
        return Err(config::Error::new(why));
    }
    // Longer than a key, so that it is hashed.
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    Ok(<[u8; 32]>::try_from(digest.as_ref()).ok())
}

/// Makes the allocator return buffers of 256 KiB and more to the system when they are freed. glibc raises that threshold with each such
/// buffer, up to 32 MiB, and then keeps the freed ones: hundreds of megabytes under load. It reads the variable only when a process
/// starts, so this executes the program again. Where the variable is set, or this fails, it does nothing.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn return_large_buffers() {
    use std::os::unix::process::CommandExt as _;
    let threshold = "MALLOC_MMAP_THRESHOLD_";
    let mut arguments = std::env::args_os();
    if let (None, Ok(program), Some(name)) = (std::env::var_os(threshold), std::env::current_exe(), arguments.next()) {
        _ = process::Command::new(program).arg0(name).args(arguments).env(threshold, "262144").exec();
    }
}

/// Forbids other processes of the user, such as the commands of agents, to read the memory and the environment of this process. Only
/// root, or a process with `CAP_SYS_PTRACE`, may read them. The process leaves no core dumps.
#[cfg(target_os = "linux")]
fn hide_from_commands() {
    use rustix::process::{DumpableBehavior, set_dumpable_behavior};
    // Does not fail with this value.
    _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// File descriptors that the process needs in addition to its connections: standard streams, listeners, database files and
/// readers, runtime.
const OTHER_DESCRIPTORS: u64 = 64;

/// Raises the soft limit of open files to the hard limit, and warns if it is too low for `limits.connections`.
fn raise_descriptor_limit(config: &Config) {
    let listeners = config.listen.0.len().saturating_add(config.metrics_listen.into_iter().count());
    let connections = u64::try_from(config.connections.count.saturating_mul(listeners)).unwrap_or(u64::MAX);
    let needed = connections.saturating_add(OTHER_DESCRIPTORS);
    if let Some(limit) = descriptor_limit(needed).filter(|limit| *limit < needed) {
        tracing::warn!(
            limit,
            needed,
            "the limit of open files does not suffice for limits.connections; raise the hard limit (ulimit -Hn, LimitNOFILE) \
             or lower limits.connections"
        );
    }
}

/// Raises the soft limit of open files to the hard limit and returns it. `None` if there is no limit.
#[cfg(unix)]
fn descriptor_limit(needed: u64) -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // Some systems have a hard limit that they reject as a soft limit.
    for wanted in [maximum, Some(maximum.map_or(needed, |maximum| maximum.min(needed)))] {
        let raises = wanted.is_none() || current.is_some_and(|current| wanted.is_some_and(|wanted| wanted > current));
        if raises && setrlimit(Resource::Nofile, Rlimit { current: wanted, maximum }).is_ok() {
            break;
        }
    }
    getrlimit(Resource::Nofile).current
}

/// Returns `None`: there is no such limit.
#[cfg(not(unix))]
fn descriptor_limit(_: u64) -> Option<u64> {
    None
}

/// Rejects an address that is reachable from other machines if callers are not authenticated, or by a short token only. The server
/// checks the first too when it listens; checked here, it is a configuration error that is reported before the store is opened.
fn guard_public(config: &Config, token_origin: &Origin) -> Result<(), config::Error> {
    let mut addresses = config.listen.0.iter().chain(&config.metrics_listen);
    let Some(addr) = addresses.find(|addr| server::is_public(**addr)).filter(|_| !config.insecure) else {
        return Ok(());
    };
    if let Some(token) = config.token.as_ref().filter(|token| token.value.expose().len() < MIN_TOKEN) {
        return Err(config::Error::new(format!(
            "{token_origin}: the token{} is shorter than {MIN_TOKEN} characters, and other machines reach {addr}\n\
             note: `a2a token new` makes a token that can't be guessed, in a file for auth.tokens",
            token.file().map(|path| format!(" in {path}")).unwrap_or_default()
        )));
    }
    if config.has_authentication() {
        return Ok(());
    }
    Err(config::Error::new(format!(
        "{addr} is reachable from other machines and callers are not authenticated; set a token (A2A_TOKEN), a token file \
         (auth.tokens) or an issuer (auth.jwt.issuer), listen on 127.0.0.1 or [::1], or allow unauthenticated access with --insecure"
    )))
}

/// Rejects `--dev` if other machines may reach the server: clients would get causes of failures, also later.
fn guard_dev(config: &Config, is_dev: bool) -> Result<(), config::Error> {
    let public = config.listen.0.iter().chain(&config.metrics_listen).find(|addr| server::is_public(**addr));
    let others = [
        ("public_url", config.public_url.is_some()),
        ("trusted_proxies", !config.trusted_proxies.is_empty()),
        ("allowed_hosts", !config.allowed_hosts.is_empty()),
        ("cors_origins", !config.cors_origins.is_empty()),
    ];
    let other = others.into_iter().find(|(_, is_set)| *is_set).map(|(key, _)| key.to_owned());
    match public.map(ToString::to_string).or(other).filter(|_| is_dev) {
        Some(found) => Err(config::Error::new(format!("--dev is for callers on this machine only; remove {found}"))),
        None => Ok(()),
    }
}

/// Rejects settings that need authentication if there is none: a protected agent card that nobody could read, an agent card that
/// declares credentials which the server does not check, and scopes of agents, which callers then do not have.
fn guard_unauthenticated(config: &Config, agents: &[AgentConfig]) -> Result<(), config::Error> {
    if config.has_authentication() {
        return Ok(());
    }
    let cards: Vec<_> = agents.iter().map(|agent| &agent.config).chain([config]).map(|config| &config.card).collect();
    if cards.iter().any(|card| card.protected) {
        return Err(config::Error::new(
            "card.protected: nobody could read the agent card; set a token (A2A_TOKEN), auth.tokens or auth.jwt.issuer",
        ));
    }
    if cards.iter().any(|card| card.file.as_ref().is_some_and(|file| file.declares_security)) {
        return Err(config::Error::new(
            "card.file: the agent card would declare credentials that this server does not check; set a token (A2A_TOKEN), \
             auth.tokens or auth.jwt.issuer, or remove the security from the file",
        ));
    }
    agents.iter().find(|agent| !agent.scopes.is_empty()).map_or(Ok(()), |AgentConfig { name, .. }| {
        let why = "would not be checked; set auth.tokens, auth.jwt.issuer or auth.mtls, or remove them";
        Err(config::Error::new(format!("agents: the scopes of `{name}` {why}")))
    })
}

#[expect(clippy::exit, reason = "a second signal must not wait for the drain")]
fn exit_now(code: i32) {
    process::exit(code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{cli::config::Value as _, service::auth::CertificateName};

    #[test]
    fn client_certificates_are_optional_only_among_alternatives() {
        let mut config = Config::default();
        let is_optional = |config: &Config| client_auth(config) == ClientAuth::Optional;
        assert!(!is_optional(&config));
        config.auth.mtls = Some(CertificateName::Dns);
        assert!(!is_optional(&config));
        config.token = Option::read("t").unwrap();
        assert!(is_optional(&config));
        config.auth.require = AuthRequire::All;
        assert!(!is_optional(&config));
        (config.auth.require, config.auth.mtls) = (AuthRequire::Any, None);
        assert!(!is_optional(&config));
    }

    #[test]
    fn self_signed_certificate_is_for_addresses_of_other_machines() {
        let address: IpAddr = "192.168.1.2".parse().unwrap();
        assert_eq!(own_address(address), Some(address));
        let own = own_address("0.0.0.0".parse().unwrap());
        assert!(own.is_none_or(|own| own.is_ipv4() && !own.is_unspecified()), "{own:?}");
    }

    #[test]
    fn public_address_requires_token_or_insecure() {
        let at = |addr: &str| {
            let mut config = Config::default();
            config.listen.0 = vec![addr.parse().unwrap()];
            config
        };
        for addr in ["0.0.0.0:8080", "[::]:80", "192.168.1.2:1"] {
            let mut config = at(addr);
            let error = guard_public(&config, &Origin::Default).unwrap_err().to_string();
            assert!(error.contains(addr) && error.contains("A2A_TOKEN") && error.contains("--insecure"), "{error}");
            config.insecure = true;
            assert!(guard_public(&config, &Origin::Default).is_ok());
            (config.insecure, config.token) = (false, Option::read("sesame-sesame-15").unwrap());
            assert!(guard_public(&config, &Origin::Default).is_ok());
            config.token = Option::read("sesame-sesame-1").unwrap();
            let error = guard_public(&config, &Origin::Variable("A2A_TOKEN".to_owned())).unwrap_err().to_string();
            assert!(
                error.starts_with("A2A_TOKEN: the token is shorter than 16") && !error.contains("sesame"),
                "{error}"
            );
            config.insecure = true;
            assert!(guard_public(&config, &Origin::Default).is_ok());
        }
        let mut several = at("127.0.0.1:1");
        several.listen.0.push("0.0.0.0:1".parse().unwrap());
        assert!(guard_public(&several, &Origin::Default).unwrap_err().to_string().contains("0.0.0.0:1"));
        let mut metrics = at("127.0.0.1:1");
        metrics.metrics_listen = "0.0.0.0:1".parse().ok();
        assert!(guard_public(&metrics, &Origin::Default).unwrap_err().to_string().contains("0.0.0.0:1"));
        for addr in ["127.0.0.2:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(guard_public(&at(addr), &Origin::Default).is_ok(), "{addr}");
        }
    }
}
