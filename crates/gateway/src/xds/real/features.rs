//! What filters and matches of routes do.

use rstest::rstest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::fixture::{add_route, add_slice, key, mk_ref, mk_route, mk_rule, mk_service};
use crate::world::{
    NewPath, PathMatch, Redirect, Rewrite, RouteFilter, RouteMatch, RouteRule, World,
};

use super::bed::{Bed, EPP, LIMIT, POD_B, REMOTE_EPP, REMOTE_POD};
use super::pick_refusing_pod_first;

fn mk_rewrite(
    path: &str,
    backend: (&str, &str),
    hostname: Option<&str>,
    new: NewPath,
) -> RouteRule {
    let mut rule = mk_rule(path, vec![mk_ref(backend.0, backend.1, 1)]);
    rule.filters = vec![RouteFilter::Rewrite(Rewrite {
        hostname: hostname.map(Into::into),
        path: Some(new),
    })];
    rule
}

/// The query stays. Of a pool and an import as of a Service.
#[tokio::test(flavor = "multi_thread")]
async fn backends_get_the_path_and_host_that_the_route_says() {
    let rewriting = |world: &mut World| {
        let (web, pool, import) = (("service", "web"), ("pool", "llm"), ("import", "llm"));
        let prefix = |text: &str| NewPath::Prefix(text.into());
        let rules = vec![
            mk_rewrite("/strip", web, None, prefix("/")),
            mk_rewrite("/old", web, Some("new.example"), prefix("/new/")),
            mk_rewrite("/full", web, None, NewPath::Full(r"/a\1%b".into())),
            mk_rewrite("/of-pool", pool, Some("pool.example"), prefix("/v1")),
            mk_rewrite("/of-import", import, None, prefix("")),
        ];
        add_route(world, mk_route("rewrites", rules));
    };
    let mut bed = Bed::start(rewriting).await;
    let (local, remote) = (bed.at(POD_B), bed.at(REMOTE_POD));
    let epps = [bed.epp(EPP, local).await, bed.epp(REMOTE_EPP, remote).await];
    bed.until("/of-pool", 200).await;
    bed.until("/of-import", 200).await;
    bed.seen.take();
    for (path, wanted, host) in [
        ("/strip", "/", "any"),
        ("/strip/", "/", "any"),
        ("/strip/a/b?c=d", "/a/b?c=d", "any"),
        ("/old", "/new", "new.example"),
        ("/old/a", "/new/a", "new.example"),
        ("/full/a?b=c", r"/a\1%b?b=c", "any"),
        ("/of-pool/chat", "/v1/chat", "pool.example"),
        ("/of-import/v1/chat", "/v1/chat", "any"),
    ] {
        let answer = bed.post(path, 1000).await;
        assert_eq!(answer.status, 200, "{path} {answer:?}");
        let seen = bed.seen.take();
        let [request] = &seen[..] else {
            panic!("{path}: {} requests", seen.len());
        };
        assert_eq!(request.target, wanted, "{path}");
        assert_eq!(request.headers["host"], host, "{path}");
    }
    for epp in &epps {
        assert!(epp.asked() > 0);
    }
    let paths = epps.map(|epp| epp.paths().pop().unwrap());
    assert_eq!(
        paths,
        ["/v1/chat", "/v1/chat"],
        "endpoint pickers get them too"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn client_is_sent_where_the_redirect_says() {
    let to = |path: &str, redirect: Redirect| {
        let mut rule = mk_rule(path, Vec::new());
        rule.filters = vec![RouteFilter::Redirect(redirect)];
        rule
    };
    let at = |path: NewPath, code| Redirect {
        hostname: Some("b.example".into()),
        port: Some(80),
        path: Some(path),
        code,
        ..Redirect::default()
    };
    let moved = move |world: &mut World| {
        let prefix = |text: &str| NewPath::Prefix(text.into());
        let https = Redirect {
            scheme: Some("https".into()),
            ..Redirect::default()
        };
        let rules = vec![
            to("/old", at(prefix("/new"), 301)),
            to("/strip", at(prefix("/"), 303)),
            to("/full", at(NewPath::Full("/one".into()), 307)),
            to("/kept", at(prefix("/kept"), 308)),
            to("/secure", https),
        ];
        add_route(world, mk_route("moved", rules));
    };
    let bed = Bed::start(moved).await;
    bed.until("/secure", 302).await;
    for (path, status, location) in [
        ("/old/a?b=c", 301, "http://b.example/new/a?b=c"),
        ("/old", 301, "http://b.example/new"),
        ("/strip/a", 303, "http://b.example/a"),
        ("/strip", 303, "http://b.example/"),
        ("/full/a?b=c", 307, "http://b.example/one?b=c"),
        ("/kept/a", 308, "http://b.example/kept/a"),
        ("/secure/a", 302, "https://any:443/secure/a"),
    ] {
        let answer = bed.post(path, 10).await;
        assert_eq!(answer.status, status, "{path} {answer:?}");
        let wanted = format!("location: {location}\r\n");
        assert!(
            format!("{}\r\n", answer.head).contains(&wanted),
            "{path} {answer:?}"
        );
    }
}

/// Of a Service that says that it serves WebSocket, and of no other backend.
#[rstest]
#[case::websocket("ws", &[("service", "ws")], true)]
#[case::beside_an_invalid_one("ws", &[("service", "ws"), ("service", "missing")], true)]
#[case::beside_a_pool("ws", &[("service", "ws"), ("pool", "llm")], false)]
#[case::plain("h2c", &[("service", "ws")], false)]
#[tokio::test(flavor = "multi_thread")]
async fn websocket_reaches_a_service_that_has_it(
    #[case] protocol: &str,
    #[case] backends: &[(&str, &str)],
    #[case] is_upgraded: bool,
) {
    let serving = |world: &mut World| {
        let mut service = mk_service(&[("http", 8080)]);
        service.ports[0].app_protocol = Some(format!("kubernetes.io/{protocol}"));
        world.services.insert(key("ws"), service);
        let mut weight = 1_000_000; // the first gets almost all requests
        let backends = backends.iter().map(|(kind, name)| {
            let backend = mk_ref(kind, name, weight);
            weight = 1;
            backend
        });
        let rule = mk_rule("/socket", backends.collect());
        add_route(world, mk_route("socket", vec![rule]));
    };
    let mut bed = Bed::start(serving).await;
    let (pod, pods) = (bed.upgrading_pod().await, bed.pods);
    add_slice(
        &mut bed.endpoints,
        "ws",
        &pod.to_string(),
        &[("http", pods)],
    );
    bed.publish();
    let wanted = if is_upgraded {
        "HTTP/1.1 101 "
    } else {
        "HTTP/1.1 426 "
    };
    let started = tokio::time::Instant::now();
    loop {
        let mut connection = bed.connect().await;
        let head = "GET /socket HTTP/1.1\r\nhost: any\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
                    sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n";
        let exchange = async {
            connection.write_all(head.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"\r\n\r\n") && !answer.ends_with(b"}") {
                if connection.read_buf(&mut answer).await.unwrap() == 0 {
                    break;
                }
            }
            String::from_utf8(answer).unwrap()
        };
        let answer = timeout(LIMIT, exchange).await.expect("an answer in time");
        if !answer.starts_with(wanted) {
            assert!(started.elapsed() < LIMIT, "{answer}");
            continue; // the endpoints of the Service are not there yet
        }
        if is_upgraded {
            let frames = async {
                connection.write_all(b"frame").await.unwrap();
                let mut back = [0; 5];
                connection.read_exact(&mut back).await.unwrap();
                back
            };
            let back = timeout(LIMIT, frames).await.expect("the frame in time");
            assert_eq!(&back, b"frame");
        }
        return;
    }
}

/// A regular expression is not supported, and its requests may be such as another rule is not meant for.
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_match_that_is_not_supported_get_500() {
    let refused = |world: &mut World| {
        let mut rule = mk_rule("/", vec![mk_ref("service", "web", 1)]);
        rule.matches = vec![RouteMatch {
            path: PathMatch::Regex("/admin/(a|b".into()),
            ..RouteMatch::default()
        }];
        add_route(world, mk_route("refused", vec![rule]));
    };
    let bed = Bed::start(refused).await;
    bed.until("/usual", 200).await;
    bed.until("/admin/a", 500).await;
    assert_eq!(bed.get("/administrator").await.status, 200);
}

/// In front of the pool is a hop here. Its retry takes the next endpoint, and no second pick.
#[tokio::test(flavor = "multi_thread")]
async fn endpoint_that_refuses_is_passed_over_behind_a_hop_too() {
    let limited = |world: &mut World| {
        let route = world.routes.get_mut(&key("pool")).unwrap();
        route.rules[0].request_timeout = Some("20s".into());
    };
    let mut bed = Bed::start(limited).await;
    let epp = pick_refusing_pod_first(&mut bed).await;
    bed.until("/pool", 200).await;
    let before = epp.asked();
    let answer = bed.post("/pool", 1000).await;
    assert_eq!(answer.body, format!("{POD_B} 1000"), "{}", answer.head);
    assert_eq!(epp.asked(), before + 1);
    assert_eq!(epp.lists().last().map(String::as_str), Some("3"));
}
