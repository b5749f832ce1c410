//! Targets of push notifications that are refused, and those that the allow-list admits.

use async_trait::async_trait;

use super::*;

/// Resolver with fixed addresses. The address of `rebind.example` is public at first, and then internal.
#[derive(Default)]
struct Names {
    /// Number of times that `rebind.example` was resolved.
    count: AtomicUsize,
    /// Number of times that it is public.
    public: usize,
}

#[async_trait]
impl Resolver for Names {
    async fn resolve(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let addresses: &[&str] = match name {
            "private.example" | "hooks.corp.example" => &["10.1.2.3"],
            "mixed.example" => &["93.184.215.14", "192.168.0.1"],
            "mapped.example" => &["::ffff:169.254.169.254"],
            "v6.example" => &["fd00::1"],
            "loopback.example" => &["127.0.0.1"],
            "rebind.example" if self.count.fetch_add(1, Ordering::SeqCst) >= self.public => &["127.0.0.1"],
            "public.example" | "hook.internal" | "rebind.example" => &["93.184.215.14"],
            _ => return Err(io::ErrorKind::NotFound.into()),
        };
        Ok(addresses.iter().map(|address| SocketAddr::new(address.parse().unwrap(), port)).collect())
    }
}

/// Returns the error for a configuration with this URL.
async fn refusal(allow: &[&str], url: &str) -> Option<String> {
    refusal_with(None, allow, url).await
}

async fn refusal_with(ports: Option<&[u16]>, allow: &[&str], url: &str) -> Option<String> {
    let allow = allow.iter().map(|entry| entry.parse().unwrap()).collect();
    let mut options = PushOptions::default().allow(allow).resolver(Some(Arc::new(Names::default())));
    if let Some(ports) = ports {
        options = options.ports(ports.to_vec());
    }
    let agent = agent::from_fn(|_, _| async { Ok(End::input_required("more?")) });
    let agent = Server::new(agent).push(true).push_options(options).into_service();
    let refused = send(&*agent, "x", hook(url)).await.err()?;
    let field = refused.violations()[0].field.clone();
    assert_eq!(field, "configuration.taskPushNotificationConfig.url", "{refused}");
    Some(refused.to_string())
}

const REFUSED: &[&str] = &[
    // Other schemes, and forms without a host.
    "ftp://public.example/",
    "file:///etc/passwd",
    "gopher://public.example/",
    "javascript:alert(1)",
    "https:///path",
    "//public.example/",
    // Without TLS, with credentials, other ports.
    "http://public.example/",
    "https://user@public.example/",
    "https://user:password@public.example/",
    "https://public.example:22/",
    "https://public.example:6379/",
    "https://public.example:25/",
    // Loopback.
    "https://127.0.0.1/",
    "https://127.0.0.2/",
    "https://127.255.255.254/",
    "https://127.1/",
    "https://127.0.1/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0x7f.1/",
    "https://0x7f.0x0.0x0.0x1/",
    "https://0177.0.0.1/",
    "https://017700000001/",
    "https://127.0.0.1./",
    "https://%31%32%37.0.0.1/",
    "https://①②⑦.⓪.⓪.①/",
    "https://[::1]/",
    "https://[0:0:0:0:0:0:0:1]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[::127.0.0.1]/",
    "https://[::ffff:0:127.0.0.1]/",
    "https://localhost/",
    "https://LOCALHOST/",
    "https://localhost./",
    "https://a.localhost/",
    "https://ｌｏｃａｌｈｏｓｔ/",
    // Unspecified.
    "https://0.0.0.0/",
    "https://0/",
    "https://0.1.2.3/",
    "https://[::]/",
    // Private.
    "https://10.0.0.1/",
    "https://10.255.255.255/",
    "https://172.16.0.1/",
    "https://172.31.255.255/",
    "https://192.168.1.1/",
    "https://0xc0a80101/",
    "https://3232235777/",
    "https://0300.0250.1.1/",
    "https://[fc00::1]/",
    "https://[fd12:3456::1]/",
    "https://[::ffff:10.0.0.1]/",
    "https://[fec0::1]/",
    // Link-local and metadata.
    "https://169.254.169.254/",
    "https://169.254.0.1/",
    "https://0xa9fea9fe/",
    "https://2852039166/",
    "https://[::ffff:169.254.169.254]/",
    "https://[fe80::1]/",
    "https://[fd00:ec2::254]/",
    "https://metadata.google.internal/",
    "https://printer.local/",
    // Shared, multicast, broadcast, documentation, benchmarks, reserved.
    "https://100.64.0.1/",
    "https://100.127.255.254/",
    "https://224.0.0.1/",
    "https://239.255.255.255/",
    "https://255.255.255.255/",
    "https://240.0.0.1/",
    "https://192.0.2.1/",
    "https://198.51.100.1/",
    "https://203.0.113.1/",
    "https://198.18.0.1/",
    "https://192.0.0.1/",
    "https://168.63.129.16/",
    "https://[ff02::1]/",
    "https://[2001:db8::1]/",
    "https://[3fff::1]/",
    // IPv4 in IPv6: NAT64, 6to4, Teredo.
    "https://[64:ff9b::127.0.0.1]/",
    "https://[64:ff9b::a9fe:a9fe]/",
    "https://[64:ff9b:1::7f00:1]/",
    "https://[2002:7f00:1::]/",
    "https://[2001:0:7f00:1::]/",
    // Names that resolve to any of these.
    "https://private.example/",
    "https://mixed.example/",
    "https://mapped.example/",
    "https://v6.example/",
    "https://loopback.example/",
    "https://LOOPBACK.example./",
];

#[tokio::test]
async fn internal_targets_are_refused() {
    const { assert!(REFUSED.len() >= 60) }
    for url in REFUSED {
        let error = refusal(&[], url).await.unwrap_or_else(|| panic!("{url} is accepted"));
        for address in ["10.1.2.3", "192.168.0.1", "fd00::1"] {
            assert!(!error.contains(address) || url.contains(address), "{error}");
        }
        // The entry that the error names permits the target.
        if let Some((_, rest)) = error.split_once("can add `") {
            let (entry, end) = rest.split_once('`').unwrap();
            assert!(end.starts_with(" to push.allow"), "{error}");
            assert_eq!(refusal(&[entry], url).await, None, "{entry}");
        }
    }
    for (url, entry) in [
        ("https://private.example/", "`private.example:443`"),
        ("http://127.0.0.1:9000/hook", "`http://127.0.0.1:9000`"),
        ("http://public.example:9000/", "`http://public.example:9000`"),
        ("https://[fc00::1]:9000/", "`[fc00::1]:9000`"),
    ] {
        let error = refusal(&[], url).await.unwrap();
        assert!(error.contains(&format!("can add {entry} to push.allow")), "{error}");
    }
}

#[tokio::test]
async fn public_targets_and_unknown_names_are_accepted() {
    for url in [
        "https://public.example/",
        "https://public.example:8443/a?b=c#d",
        "https://93.184.215.14/",
        "https://[2606:2800:21f:cb07:6820:80da:af6b:8b2c]/",
        "https://[64:ff9b::93.184.215.14]/",
        "https://unknown.example/",
    ] {
        assert_eq!(refusal(&[], url).await, None, "{url}");
    }
}

#[tokio::test]
async fn allow_list_admits_exactly_what_it_names() {
    for (entry, admitted, refused) in [
        (
            "10.0.0.0/8",
            &["https://10.1.2.3/", "https://private.example/", "https://10.9.9.9:22/"][..],
            &["http://10.1.2.3/", "https://11.0.0.1:22/", "https://192.168.0.1/"][..],
        ),
        (
            "127.0.0.1:9000",
            &["https://127.0.0.1:9000/"],
            &["https://127.0.0.1/", "http://127.0.0.1:9000/", "https://127.0.0.2:9000/"],
        ),
        (
            "http://127.0.0.1",
            &["http://127.0.0.1/", "https://127.0.0.1:1/", "http://[::ffff:127.0.0.1]/"],
            &["http://127.0.0.2/", "http://localhost/"],
        ),
        ("[::1]", &["https://[::1]/"], &["https://127.0.0.1/", "https://[::2]/"]),
        (
            "hook.internal",
            &["https://hook.internal/", "https://hook.internal:7000/"],
            &["http://hook.internal/", "https://a.hook.internal/"],
        ),
        ("*.corp.example", &["https://hooks.corp.example/"], &["https://private.example/", "https://corp.example:22/"]),
        ("http://public.example:8080", &["http://public.example:8080/"], &["http://public.example/"]),
        // Each address of a name must be admitted.
        ("192.168.0.0/16", &["https://mixed.example/"], &["https://private.example/"]),
    ] {
        for url in admitted {
            assert_eq!(refusal(&[entry], url).await, None, "{entry} {url}");
        }
        for url in refused {
            assert!(refusal(&[entry], url).await.is_some(), "{entry} {url}");
        }
    }
    for wrong in ["", "http://", "ftp://h", "h:0", "h:99999", "https://h/path", "10.0.0.0/33", "a b"] {
        assert!(wrong.parse::<AllowedTarget>().is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn ports_are_those_of_the_configuration() {
    const URLS: [&str; 6] = ["", ":443", ":8443", ":9000", ":22", ":1"];
    for (ports, allow, accepted) in [
        (None, &[][..], [true, true, true, false, false, false]),
        (Some(vec![443]), &[], [true, true, false, false, false, false]),
        (Some(vec![9000, 22]), &[], [false, false, false, true, true, false]),
        (Some(Vec::new()), &[], [false; 6]),
        (Some(Vec::new()), &["public.example:1"], [false, false, false, false, false, true]),
        (Some(vec![22]), &["public.example"], [true; 6]),
        (Some(Vec::new()), &["*:9000"], [false, false, false, true, false, false]),
    ] {
        for (port, accepted) in URLS.into_iter().zip(accepted) {
            let url = format!("https://public.example{port}/");
            let error = refusal_with(ports.as_deref(), allow, &url).await;
            assert_eq!(error.is_none(), accepted, "{ports:?} {allow:?} {url}: {error:?}");
            assert!(error.is_none_or(|error| error.contains("push.allow")));
        }
    }
    // Neither ports nor names admit an internal address.
    for url in
        ["https://127.0.0.1:9000/", "https://169.254.169.254:9000/", "https://[::1]:9000/", "https://a.local:9000/"]
    {
        let error = refusal_with(None, &["*:9000"], url).await.unwrap();
        assert!(error.contains("internal"), "{url}: {error}");
    }
    assert!(refusal_with(None, &["*:9000"], "http://public.example:9000/").await.unwrap().contains("https"));
    assert!("*".parse::<AllowedTarget>().is_err());
    let ports = Some(vec![9000]);
    assert!(refusal_with(ports.as_deref(), &[], "https://127.0.0.1:9000/").await.is_some());
    assert!(refusal_with(ports.as_deref(), &[], "http://public.example:9000/").await.is_some());
}

/// Names that never resolve use up the look-ups of their owner only, and what needs no look-up does not wait.
#[tokio::test]
async fn unanswered_lookups_are_limited_by_owner() {
    struct Silent;

    #[async_trait]
    impl Resolver for Silent {
        async fn resolve(&self, _: &str, _: u16) -> io::Result<Vec<SocketAddr>> {
            std::future::pending().await
        }
    }

    let options = PushOptions::default().resolver(Some(Arc::new(Silent)));
    let agent = agent::from_fn(|_, _| async { Ok(End::input_required("more?")) });
    let agent = Server::new(agent).push(true).push_options(options).into_service();
    let sends = (0..12).map(|n| send(&*agent, "x", hook(&format!("https://slow-{n}.example/")))).collect::<Vec<_>>();
    let others = async {
        // Once all look-ups of the others are pending.
        tokio::task::yield_now().await;
        agent.send_message(Call::default().request(message("x"))).await.unwrap();
        let bob = Call { owner: "bob".into(), ..Call::default() };
        let mut request = message("x");
        request.configuration = Some(SendMessageConfiguration {
            task_push_notification_config: Some(hook("https://slow.example/")),
            ..Default::default()
        });
        agent.send_message(bob.request(request)).await.unwrap();
    };
    let (sends, ()) = tokio::join!(futures::future::join_all(sends), others);
    let refused: Vec<_> = sends.into_iter().filter_map(Result::err).collect();
    assert_eq!(refused.len(), 4);
    for error in refused {
        assert_eq!(error.kind(), a2a_service::error::ErrorKind::ResourceExhausted, "{error}");
        assert_eq!(error.metadata("limit"), Some("webhook_lookups_per_owner"), "{error}");
        assert!(error.to_string().contains("8 of your look-ups") && error.retry_after_seconds().is_some(), "{error}");
    }
}

fn message(text: &str) -> SendMessageRequest {
    SendMessageRequest { message: Some(Message::user(text)), ..Default::default() }
}

/// A name whose address changes after its registration, or between check and connection, gains nothing.
#[tokio::test]
async fn changed_address_of_a_name_is_refused() {
    for public in [1, 2] {
        let receiver = Receiver::accepting().await;
        let port = receiver.addr.port();
        // The port is admitted, and the address is not, except with another port.
        let allow = [format!("http://93.184.215.14:{port}"), "http://127.0.0.1:1".to_owned()];
        let allow = allow.iter().map(|entry| entry.parse().unwrap()).collect();
        let names = Arc::new(Names { public, ..Names::default() });
        let resolver: Arc<dyn Resolver> = Arc::<Names>::clone(&names);
        let store = Arc::new(Memory::default());
        let shared: Arc<dyn Store> = Arc::<Memory>::clone(&store);
        let options = options().allow(allow).resolver(Some(resolver));
        let agent = Server::new(Writer).store(shared).push(true).push_options(options).into_service();
        send(&*agent, "1", hook(&format!("http://rebind.example:{port}/"))).await.unwrap();
        let is_given_up = async {
            while store.deliveries(true, DeliveryToken::default(), 1).await.unwrap().deliveries.is_empty() {
                pause().await;
            }
        };
        timeout(SOON, is_given_up).await.unwrap();
        assert_eq!(receiver.requests.lock().len(), 0);
        assert!(names.count.load(Ordering::SeqCst) > public, "the internal address was seen");
    }
}
