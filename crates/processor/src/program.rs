//! The program: what it is made of, ports, tasks, and their end.

use std::{path::PathBuf, sync::Arc};

use http_call::{TrustFiles, TrustReload};
use http_service::{Names, Parts, Security, Server, TokenFile, Tokens, hangups, listen, threads};
use otlp::SpanMetrics;
use process::{ConfigError, Health, Shutdown};
use prometheus_client::registry::Registry;
use token_cache::{Endpoint, Store, Upkeep};
use tokenization::{EncodeOptions, SegmentCache};
use tokio::net::TcpListener;
use tracing::{info, warn};

use crate::{
    args::{
        Args, Command, ListenArgs, PeerArgs, PromptArgs, RouterArgs, TokenArgs, TokenCachePlace,
    },
    encoders::Encoders,
    metrics::Metrics,
    models::{MODELS, Models, ModelsFile},
    router::Router,
    service::{Service, Settings},
    spans::Spans,
    steps::{Shared, Steps},
    token_port::TokenPort,
    verify,
};

/// As paths and metrics have it.
const NAMES: Names = Names {
    program: "processor",
    metrics: "processor",
};

/// Runs the service until `shutdown`, or another command to its end.
///
/// # Errors
/// [`process::ConfigError`] for values that cannot work, before a port is opened; else what made a part end.
pub async fn run(mut args: Args, shutdown: Shutdown) -> anyhow::Result<()> {
    if let Some(Command::Verify(verify)) = args.command.take() {
        return verify::run(verify, &args.prompts).await;
    }
    let made = Made::of(args)?;
    let ports = Ports::open(&made.listen, made.with_token_port())?;
    made.serve(ports, shutdown).await
}

/// What the flags make.
pub(crate) struct Made {
    listen: ListenArgs,
    registry: Registry,
    security: Security,
    models_file: ModelsFile,
    metrics: Metrics,
    steps: Steps<Router, Store>,
    cache: Option<Cache>,
    trust: Option<TrustReload>,
    spans: Option<otlp::Setup>,
}

/// The ports; opened together, so that a taken one ends the program before it does anything.
pub(crate) struct Ports {
    pub(crate) calls: TcpListener,
    /// Absent: ids are not kept here.
    pub(crate) tokens: Option<TcpListener>,
    pub(crate) admin: TcpListener,
}

/// The token cache, and what keeps it up to date.
struct Cache {
    store: Store,
    upkeep: Upkeep,
    /// Of those who fetch ids here.
    tokens: Option<(Tokens, TokenFile)>,
}

// === impl Made ===

impl Made {
    pub(crate) fn of(args: Args) -> anyhow::Result<Self> {
        let Args {
            command: _, // it serves
            listen,
            prompts,
            router,
            tokens,
            peers,
            callers,
            tracing,
            log: _, // the boundary of the program has used it
        } = args;
        listen.check()?;
        prompts.check()?;
        router.check()?;
        let transfer = tokens.transfer()?;
        let mut registry = Registry::default();
        let security = Security::of(callers, NAMES, &mut registry)?;
        let (models, models_file) = models_of(&prompts)?;
        let metrics = Metrics::register(&mut registry);
        let (route_timeout, store_timeout) = (router.route_timeout.0, tokens.token_store_timeout.0);
        let peers = files_of(peers);
        let cache = cache_of(tokens, peers.clone(), &mut registry)?;
        let (router, trust) = router_of(router, peers)?;
        let encoders = Arc::new(Encoders::start(
            prompts.tokenizer_threads.unwrap_or_else(threads),
            prompts.tokenizer_queue,
        )?);
        let shared = shared_of(&prompts, models.clone(), metrics.clone());
        let segments = shared.options.cache.clone();
        metrics.register_page(&mut registry, models, Arc::clone(&encoders), segments);
        let steps = Steps {
            encoders,
            shared: Arc::new(shared),
            router,
            tokens: cache.as_ref().map(|cache| cache.store.clone()),
            transfer,
            route_timeout,
            store_timeout,
            spans: None,
        };
        Ok(Self {
            listen,
            registry,
            security,
            models_file,
            metrics,
            steps,
            cache,
            trust,
            spans: tracing.setup(),
        })
    }

    pub(crate) fn with_token_port(&self) -> bool {
        self.cache
            .as_ref()
            .is_some_and(|cache| cache.store.is_memory())
    }

    pub(crate) async fn serve(self, ports: Ports, shutdown: Shutdown) -> anyhow::Result<()> {
        let Self {
            listen,
            mut registry,
            mut security,
            models_file,
            metrics,
            mut steps,
            cache,
            trust,
            spans,
        } = self;
        let health = Health::new(&[MODELS]);
        let mut parts = Parts::new(health.clone(), listen.drain_timeout.0);
        steps.spans = spans.and_then(|setup| spawn_spans(&setup, &mut parts, &mut registry));
        let probes = process::admin::router(Arc::new(registry), health.clone());
        security.spawn(&mut parts)?;
        let (of_models, catalogue) = (hangups()?, metrics.catalogue.clone());
        parts.spawn("reload of models", async {
            models_file.run(of_models, health, catalogue).await;
            Ok(())
        });
        if let Some(trust) = trust {
            let hangups = hangups()?;
            parts.spawn("reload of CAs", async {
                trust.run(hangups).await;
                Ok(())
            });
        }
        let refused = metrics.refused_connections.clone();
        if let Some(cache) = cache {
            let Cache {
                store,
                upkeep,
                tokens,
            } = cache;
            let (tokens, file) = tokens.unzip();
            if let Some(file) = file {
                let hangups = hangups()?;
                parts.spawn("reload of the token cache's tokens", async {
                    file.run(hangups).await;
                    Ok(())
                });
            }
            parts.spawn("upkeep of the token cache", async {
                upkeep.run().await;
                Ok(())
            });
            if let Some(listener) = ports.tokens {
                let server = Server {
                    handler: TokenPort::new(store, tokens),
                    acceptor: security.acceptor.clone(),
                    threads: threads(),
                    refused: refused.clone(),
                };
                parts.serve("token server", server, listener);
            }
        }
        let tokens = security.tokens;
        let server = Server {
            handler: Service::new(Settings { steps, tokens }),
            acceptor: security.acceptor,
            threads: threads(),
            refused,
        };
        parts.serve("server", server, ports.calls);
        parts.spawn("admin server", async move {
            // Until the end of the program: a drain is watched.
            Ok(axum::serve(ports.admin, probes).await?)
        });
        let ListenArgs {
            http_port,
            token_port,
            admin_port,
            ..
        } = listen;
        info!(http_port, token_port, admin_port, "started");
        parts.until(shutdown).await
    }
}

/// Spans of calls, where they can be made: a Processor without them is better than none.
fn spawn_spans(setup: &otlp::Setup, parts: &mut Parts, registry: &mut Registry) -> Option<Spans> {
    let metrics = SpanMetrics::register(registry, "processor");
    match setup.build("processor", metrics) {
        Ok((provider, export)) => {
            let stop = parts.stop();
            parts.spawn("spans", async {
                export.run(stop).await;
                // A part that ends ends the program.
                std::future::pending().await
            });
            info!(endpoint = setup.endpoint, "sending spans");
            Some(Spans::new(provider))
        }
        Err(error) => {
            warn!(%error, "no spans are sent: check the variables OTEL_EXPORTER_OTLP_*");
            None
        }
    }
}

fn files_of(args: PeerArgs) -> TrustFiles {
    let PeerArgs {
        peer_ca_file,
        peer_cert_path,
    } = args;
    TrustFiles {
        ca_file: peer_ca_file,
        cert_dir: peer_cert_path,
    }
}

fn models_of(args: &PromptArgs) -> Result<(Models, ModelsFile), ConfigError> {
    let path = args.models_file()?;
    ModelsFile::begin(path).map_err(|error| {
        ConfigError::new(
            format!("--models-file {}: {error}", path.display()),
            "a file that names models",
            "--models-file /etc/processor/models.yaml",
        )
    })
}

fn shared_of(args: &PromptArgs, models: Models, metrics: Metrics) -> Shared {
    let max_prompt_bytes = args.max_prompt_bytes.0;
    Shared {
        models,
        options: EncodeOptions {
            cache: SegmentCache::new(args.segment_cache_max_bytes.0, rand::random()),
            verify_sample: args.verify_sample,
        },
        max_prompt_bytes: usize::try_from(max_prompt_bytes).unwrap_or(usize::MAX),
        metrics,
    }
}

fn router_of(
    args: RouterArgs,
    peers: TrustFiles,
) -> Result<(Option<Router>, Option<TrustReload>), ConfigError> {
    let Some(url) = args.dynamo_router_endpoint else {
        return Ok((None, None));
    };
    if !url.0.is_https() {
        return Ok((Some(Router::new(url.0, None)), None));
    }
    let (trust, reload) = peers.begin().map_err(|error| refused_peers(&error))?;
    let reload = Some(reload).filter(TrustReload::is_needed);
    Ok((Some(Router::new(url.0, Some(trust))), reload))
}

fn cache_of(
    args: TokenArgs,
    peers: TrustFiles,
    registry: &mut Registry,
) -> Result<Option<Cache>, ConfigError> {
    let TokenCachePlace::At(endpoint) = args.token_cache_endpoint else {
        return Ok(None);
    };
    let in_memory = endpoint == Endpoint::Memory;
    let (of_callers, of_cache) = match args.token_auth_file {
        Some(path) if in_memory => (Some(tokens_of(path)?), None),
        path => (None, path),
    };
    let max_bytes = args.token_cache_max_bytes.0;
    let settings = token_cache::Settings {
        ttl: args.token_ttl.0,
        max_bytes: usize::try_from(max_bytes).unwrap_or(usize::MAX),
        tls: peers,
        token_file: of_cache,
    };
    let (store, upkeep) = Store::open(endpoint, settings).map_err(|error| {
        ConfigError::new(
            format!("--token-cache-endpoint: {error}"),
            "files that can be used",
            "--peer-ca-file /etc/processor/ca.crt --token-auth-file /etc/processor/token",
        )
    })?;
    store.register(registry);
    Ok(Some(Cache {
        store,
        upkeep,
        tokens: of_callers,
    }))
}

fn tokens_of(path: PathBuf) -> Result<(Tokens, TokenFile), ConfigError> {
    let value = format!("--token-auth-file {}", path.display());
    TokenFile::begin(path).map_err(|error| {
        ConfigError::new(
            format!("{value}: {error}"),
            "a file of tokens, one on each line, of at most 64 KiB",
            "--token-auth-file /etc/processor/token",
        )
    })
}

fn refused_peers(error: &http_call::TrustError) -> ConfigError {
    ConfigError::new(
        format!("--peer-ca-file, --peer-cert-path: {error}"),
        "a file of CAs in PEM, and a directory with tls.crt and tls.key",
        "--peer-ca-file /etc/processor/ca.crt",
    )
}

// === impl Ports ===

impl Ports {
    fn open(args: &ListenArgs, with_token_port: bool) -> anyhow::Result<Self> {
        let tokens = if with_token_port {
            Some(listen(args.host, args.token_port, "--token-port")?)
        } else {
            None
        };
        Ok(Self {
            calls: listen(args.host, args.http_port, "--http-port")?,
            tokens,
            admin: listen(args.host, args.admin_port, "--admin-port")?,
        })
    }
}

#[cfg(test)]
mod tests;
