//! What the endpoint pickers' external stage needs: a Processor with a small tokenizer, a Router, and model servers that
//! take token ids and publish their KV events.

use std::path::Path;

use nix::sys::signal::Signal;

use super::program::{again, answers, local, restart, start, url, words};
use super::{MODEL, Ports};
use crate::error::TestbedError;
use crate::isthmus;
use crate::process::Service;

const MODELS: &str = include_str!("../../../../config/standalone/models.yaml");
const TOKENIZER: &str = include_str!("../../../../config/standalone/models/llama/tokenizer.json");
const TOKENIZER_CONFIG: &str =
    include_str!("../../../../config/standalone/models/llama/tokenizer_config.json");

/// Ids in a block, of the model servers and of the Router.
const BLOCK_SIZE: u32 = 16;

/// How to run them.
#[derive(Clone, Debug, Default)]
pub struct ExternalSetup {
    /// Flags of the Processor besides.
    pub processor_flags: Vec<String>,
    /// Flags of the Router besides.
    pub router_flags: Vec<String>,
    /// The token cache is a Redis of its own instead of the Processor's memory.
    pub redis: bool,
}

/// A running Processor and Router.
#[derive(Debug)]
pub struct External {
    ports: Ports,
    processor: Service,
    router: Service,
    redis: Option<Service>,
}

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The Processor.
    Processor,
    /// The Router.
    Router,
    /// The token cache, where it is a Redis.
    Redis,
}

/// Flags of the model servers.
pub(super) fn server_flags(setup: &ExternalSetup, ports: Ports) -> Vec<String> {
    let external = ports.external;
    let cache = if setup.redis {
        format!("redis://{}", local(ports.redis))
    } else {
        url(local(external.tokens))
    };
    words(&format!(
        "--block-size {BLOCK_SIZE} --accept-tokens key,body --token-cache-endpoint {cache} --tokenize-url {} \
         --kv-events-port {} --kv-replay-port {}",
        url(local(external.processor)),
        external.events,
        external.replay,
    ))
}

/// Flags of the endpoint pickers.
pub(super) fn picker_flags(ports: Ports) -> Vec<String> {
    words(&format!(
        "--external-llm-processor-endpoint {} --use-external-llm-processor true --use-external-llm-router true",
        url(local(ports.external.processor)),
    ))
}

// === impl External ===

impl External {
    pub(super) async fn start(
        setup: &ExternalSetup,
        ports: Ports,
        files: &Path,
        logs: &Path,
    ) -> Result<Self, TestbedError> {
        write_models(files)?;
        let at = ports.external;
        let redis = if setup.redis {
            let flags = words(&format!(
                "--bind 127.0.0.1 --port {} --appendonly no --maxmemory-policy allkeys-lru --save",
                ports.redis
            ));
            let flags = [flags, vec![String::new()]].concat();
            Some(start("redis", redis_server::find()?, flags, files, logs)?)
        } else {
            None
        };
        let flags = words(&format!(
            "--host 127.0.0.1 --http-port {} --admin-port {} --endpoints-file endpoints.yaml --enable-debug \
             --block-size {BLOCK_SIZE} --kv-event-port {} --kv-event-replay-port {}",
            at.router, at.router_admin, at.events, at.replay,
        ));
        let flags = [flags, setup.router_flags.clone()].concat();
        let router = start("router", isthmus::program("router")?, flags, files, logs)?;
        answers(&router, "router", Some(local(at.router_admin)), "/readyz").await?;
        let cache = match &redis {
            Some(_) => format!("redis://{}", local(ports.redis)),
            None => "memory".to_owned(),
        };
        let flags = words(&format!(
            "--host 127.0.0.1 --http-port {} --token-port {} --admin-port {} --models-file models.yaml \
             --dynamo-router-endpoint {} --token-cache-endpoint {cache}",
            at.processor,
            at.tokens,
            at.processor_admin,
            url(local(at.router)),
        ));
        let flags = [flags, setup.processor_flags.clone()].concat();
        let program = isthmus::program("processor")?;
        let processor = start("processor", program, flags, files, logs)?;
        let admin = Some(local(at.processor_admin));
        answers(&processor, "processor", admin, "/readyz").await?;
        Ok(Self {
            ports,
            processor,
            router,
            redis,
        })
    }

    /// The Processor's URL.
    pub fn processor_url(&self) -> String {
        url(local(self.ports.external.processor))
    }

    /// The URL of the Processor's `/metrics`.
    pub fn processor_admin_url(&self) -> String {
        url(local(self.ports.external.processor_admin))
    }

    /// The URL of the Router's `/metrics` and `/debug`.
    pub fn router_admin_url(&self) -> String {
        url(local(self.ports.external.router_admin))
    }

    /// SIGKILL to one; returns when it is gone.
    pub async fn kill(&self, part: Part) {
        if let Some(service) = self.service(part) {
            service.kill().await;
        }
    }

    /// Starts one again and waits until it is ready.
    ///
    /// # Errors
    /// When it does not come up; with the end of its log.
    pub async fn restart(&self, part: Part) -> Result<(), TestbedError> {
        let at = self.ports.external;
        match part {
            Part::Processor => restart(&self.processor, "processor", at.processor_admin).await,
            Part::Router => restart(&self.router, "router", at.router_admin).await,
            Part::Redis => match &self.redis {
                Some(redis) => again(redis, "redis").await,
                None => Ok(()),
            },
        }
    }

    /// One stands still until it is thawed.
    pub async fn freeze(&self, part: Part) {
        if let Some(service) = self.service(part) {
            service.signal(Signal::SIGSTOP).await;
        }
    }

    /// It goes on.
    pub async fn thaw(&self, part: Part) {
        if let Some(service) = self.service(part) {
            service.signal(Signal::SIGCONT).await;
        }
    }

    pub(super) fn services(&self) -> impl Iterator<Item = &Service> {
        [&self.processor, &self.router]
            .into_iter()
            .chain(&self.redis)
    }

    fn service(&self, part: Part) -> Option<&Service> {
        match part {
            Part::Processor => Some(&self.processor),
            Part::Router => Some(&self.router),
            Part::Redis => self.redis.as_ref(),
        }
    }
}

fn write_models(files: &Path) -> Result<(), TestbedError> {
    let model = files.join("models").join(MODEL);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| TestbedError::File { path, source }
    };
    std::fs::create_dir_all(&model).map_err(failed(&model))?;
    for (path, content) in [
        (files.join("models.yaml"), MODELS),
        (model.join("tokenizer.json"), TOKENIZER),
        (model.join("tokenizer_config.json"), TOKENIZER_CONFIG),
    ] {
        std::fs::write(&path, content).map_err(failed(&path))?;
    }
    Ok(())
}
