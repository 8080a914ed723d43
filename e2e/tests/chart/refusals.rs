//! Values that the charts refuse.

use anyhow::{Result, ensure};

use crate::helm::{Helm, POOL, SYSTEM};

/// Simulated workers, so that there is nothing else to refuse.
const SIM: &str = "image.hub=example.com/isthmus,worker.kind=sim,worker.model=llama";
/// The images of the chart of the controller and the gateway.
const IMAGES: &str = "controller.image.registry=example.com,gateway.image.registry=example.com";
const PROCESSOR: &str =
    "processor.enabled=true,processor.models[0].name=llama,processor.models[0].path=/models/llama";

/// What is set, besides [`SIM`], and how the reason begins.
const COMBINATIONS: &[(&[&str], &str)] = &[
    (&["image.hub="], "image.hub is empty"),
    (
        &["image.hub=isthmus"],
        "image.hub is isthmus, which names no registry",
    ),
    (
        &["worker.kind=vllm,worker.vllm.image.hub=vllm"],
        "worker.vllm.image.hub is vllm, which names no registry",
    ),
    (
        &[
            "metadataCenter.enabled=true,metadataCenter.backend=redis,metadataCenter.redis.deploy=true",
            "metadataCenter.redis.image.hub=valkey",
        ],
        "metadataCenter.redis.image.hub is valkey, which names no registry",
    ),
    (
        &["worker.kind=none"],
        "inferencePool.modelServers.matchLabels is empty",
    ),
    (&["worker.model="], "worker.model is empty"),
    (
        &["inferenceExtension.service.loadBalancerClass=example.com/internal"],
        "inferenceExtension.service.loadBalancerClass is for the type LoadBalancer: it is ClusterIP",
    ),
    (
        &["inferencePool.modelServers.matchLabels.isthmus\\.dev/component=other"],
        "inferencePool.modelServers.matchLabels has isthmus.dev/component",
    ),
    (
        &["inferencePool.targetPorts[0].number=8000,inferencePool.targetPorts[1].number=8100"],
        "inferencePool.targetPorts has 8100",
    ),
    (
        &[
            "worker.kind=vllm",
            "inferencePool.targetPorts[0].number=8000,inferencePool.targetPorts[1].number=8001",
        ],
        "inferencePool.targetPorts has 2 ports",
    ),
    (
        &["provider.mode=EnvoyFilter"],
        "provider.mode is EnvoyFilter, which needs provider.name istio: it is none",
    ),
    (
        &["provider.name=istio,provider.mode=EnvoyFilter"],
        "provider.istio.envoyFilter.routes is empty",
    ),
    (
        &[
            "provider.name=istio,provider.mode=EnvoyFilter",
            "provider.istio.envoyFilter.routes[0]=llama,provider.istio.envoyFilter.workloadSelector.istio=ingressgateway",
        ],
        "provider.istio.envoyFilter.namespace is empty",
    ),
    (
        &[
            "provider.name=istio,provider.mode=EnvoyFilter,httpRoute.create=true",
            "provider.istio.envoyFilter.namespace=istio-system",
        ],
        "provider.istio.envoyFilter.namespace is istio-system, and the Gateway inference-gateway is in llm",
    ),
    (
        &[
            "provider.name=istio,provider.mode=EnvoyFilter,httpRoute.create=true",
            "provider.istio.envoyFilter.namespace=istio-system,provider.istio.envoyFilter.workloadSelector.istio=ingressgateway",
        ],
        "provider.istio.envoyFilter.workloadSelector is for a classic gateway",
    ),
    (
        &[
            "provider.name=istio,provider.mode=EnvoyFilter,httpRoute.create=true",
            "provider.istio.destinationRule.host=pool-epp",
        ],
        "provider.istio.destinationRule.host is pool-epp: with provider.mode EnvoyFilter",
    ),
    (
        &[
            "provider.name=istio,provider.mode=EnvoyFilter,httpRoute.create=true",
            "inferencePool.targetPorts[0].number=8000,inferencePool.targetPorts[1].number=8001",
        ],
        "inferencePool.targetPorts has 2 ports: with provider.mode EnvoyFilter",
    ),
    (
        &["worker.adapter.enabled=true"],
        "worker.adapter.enabled: there is no adapter yet",
    ),
    (
        &["inferenceExtension.pluginsCustomConfig.mine\\.yaml=a"],
        "inferenceExtension.pluginsConfigFile is default-plugins.yaml: pluginsCustomConfig has only mine.yaml",
    ),
    (
        &[
            "inferenceExtension.pluginsCustomConfig.llm-filter\\.yaml=a",
            "inferenceExtension.pluginsConfigFile=llm-filter.yaml,inferenceExtension.llmFilterConfig=b",
        ],
        "inferenceExtension.pluginsCustomConfig has a file llm-filter.yaml",
    ),
    (
        &["inferenceExtension.externalProcessor.enabled=true"],
        "inferenceExtension.externalProcessor.enabled needs a Processor",
    ),
    (
        &["inferenceExtension.externalProcessor.router=true"],
        "inferenceExtension.externalProcessor.router needs the Processor",
    ),
    (
        &[
            PROCESSOR,
            "inferenceExtension.externalProcessor.router=true",
        ],
        "inferenceExtension.externalProcessor.router needs a Router",
    ),
    (
        &[
            PROCESSOR,
            "inferenceExtension.externalProcessor.endpoint=http://other:8090",
        ],
        "inferenceExtension.externalProcessor.endpoint names a Processor elsewhere",
    ),
    (
        &[
            "inferenceExtension.monitoring.prometheus.enabled=true,inferenceExtension.monitoring.prometheus.auth.enabled=true",
        ],
        "inferenceExtension.monitoring.prometheus.auth.secretName is empty",
    ),
    (
        &["router.enabled=true"],
        "router.enabled needs processor.enabled",
    ),
    (
        &[PROCESSOR, "router.enabled=true,router.replicas=2"],
        "router.replicas is 2",
    ),
    (
        &[
            PROCESSOR,
            "router.enabled=true,processor.routerEndpoint=http://other:8091",
        ],
        "processor.routerEndpoint names a Router elsewhere",
    ),
    (
        &[
            PROCESSOR,
            "router.enabled=true",
            "inferencePool.targetPorts[0].number=8000,inferencePool.targetPorts[1].number=8001",
        ],
        "kvEvents.port 5557 and kvEvents.replayPort 5558 overlap",
    ),
    (&["processor.enabled=true"], "processor.models is empty"),
    (
        &["processor.enabled=true,processor.models[0].name=llama,processor.models[0].path=llama"],
        "processor.models: the path llama is one in processor.modelsVolume",
    ),
    (
        &[PROCESSOR, "processor.replicas=2"],
        "processor.replicas is 2 with tokenCache.backend memory",
    ),
    (
        &[PROCESSOR, "tokenCache.backend=redis"],
        "tokenCache.backend redis needs",
    ),
    (
        &[
            PROCESSOR,
            "tokenCache.backend=redis,tokenCache.url=redis://a,tokenCache.redis.deploy=true",
        ],
        "tokenCache.url, tokenCache.urlSecret and tokenCache.redis.deploy each name a Redis",
    ),
    (
        &[PROCESSOR, "tokenCache.redis.deploy=true"],
        "tokenCache.redis.deploy needs tokenCache.backend redis",
    ),
    (
        &["tokenCache.redis.deploy=true"],
        "tokenCache.redis.deploy needs processor.enabled",
    ),
    (
        &["inferenceExtension.externalProcessor.endpoint=http://other:8090"],
        "tokenCache.backend memory needs processor.enabled",
    ),
    (
        &[
            "inferenceExtension.externalProcessor.endpoint=http://other:8090",
            "tokenCache.backend=redis",
        ],
        "tokenCache.backend redis needs tokenCache.url or tokenCache.urlSecret",
    ),
    (
        &[
            PROCESSOR,
            "tokenCache.backend=none,processor.tokenTransfer=cache",
        ],
        "processor.tokenTransfer is cache, and tokenCache.backend none",
    ),
    (
        &[
            "worker.kind=vllm",
            PROCESSOR,
            "processor.tokenTransfer=direct",
        ],
        "processor.tokenTransfer is direct: vLLM takes text alone",
    ),
    (
        &[
            PROCESSOR,
            "httpRoute.create=true,httpRoute.requestTimeoutSeconds=301",
        ],
        "tokenCache.ttlSeconds is 300: less than httpRoute.requestTimeoutSeconds (301)",
    ),
    // a request that is set without its limit is compared with the chart's
    (
        &[
            PROCESSOR,
            "router.enabled=true,router.resources.requests.memory=2304Mi",
        ],
        "router.resources.requests.memory is 2304Mi, and the limit is 2Gi",
    ),
    (
        &[
            PROCESSOR,
            "processor.resources.requests.memory=4294967297,processor.resources.requests.cpu=8",
        ],
        "processor.resources.requests.memory is 4294967297, and the limit is 4Gi",
    ),
    (
        &["inferenceExtension.resources.limits.cpu=0.4"],
        "inferenceExtension.resources.requests.cpu is 500m, and the limit is 0.4",
    ),
    (
        &["metadataCenter.enabled=true,metadataCenter.resources.requests.memory=2G"],
        "metadataCenter.resources.requests.memory is 2G, and the limit is 1Gi",
    ),
    (
        &[
            "metadataCenter.enabled=true,metadataCenter.backend=redis,metadataCenter.redis.deploy=true",
            "metadataCenter.redis.resources.limits.memory=512Mi",
        ],
        "metadataCenter.redis.resources.requests.memory is 768Mi",
    ),
    (
        &[
            PROCESSOR,
            "tokenCache.backend=redis,tokenCache.redis.deploy=true,tokenCache.redis.resources.limits.memory=1e9",
        ],
        "tokenCache.redis.resources.requests.memory is 1280Mi",
    ),
    (
        &["worker.resources.limits.memory=100Mi"],
        "worker.resources.requests.memory is 128Mi",
    ),
    (
        &[PROCESSOR, "router.enabled=true,router.indexMaxBytes=1GiB"],
        "router.indexMaxBytes is 1GiB, which with 1.25GiB for all else is more than the limit, 2Gi",
    ),
    (
        &["metadataCenter.enabled=true,metadataCenter.replicas=2"],
        "metadataCenter.replicas is 2",
    ),
    (
        &["metadataCenter.enabled=true,metadataCenter.host=other"],
        "metadataCenter.host names one elsewhere",
    ),
    (
        &["metadataCenter.enabled=true,metadataCenter.backend=redis"],
        "metadataCenter.backend redis needs",
    ),
    (
        &["metadataCenter.enabled=true,metadataCenter.redis.deploy=true"],
        "metadataCenter.redis.deploy needs metadataCenter.backend redis",
    ),
    (
        &[
            "metadataCenter.enabled=true,metadataCenter.backend=redis,metadataCenter.redis.url=redis://a,metadataCenter.redis.deploy=true",
        ],
        "metadataCenter.redis.url, metadataCenter.redis.urlSecret and metadataCenter.redis.deploy each name a Redis",
    ),
];

/// The same of the chart of the controller and the gateway, with nothing besides.
const SYSTEM_COMBINATIONS: &[(&[&str], &str)] = &[
    (
        &["gateway.enabled=false,member.enabled=false"],
        "controller.enabled, gateway.enabled and member.enabled are all false",
    ),
    (
        &["controller.enabled=true,controller.selfName=west,member.enabled=false"],
        "controller.selfName is west",
    ),
    (
        &["gateway.image.registry="],
        "gateway.image names no registry: nodes would ask Docker Hub",
    ),
    (
        &["controller.enabled=true,controller.image.registry=team"],
        "controller.image names no registry",
    ),
    (
        &["gateway.envoyImage.registry="],
        "gateway.envoyImage names no registry",
    ),
    (
        &["gateway.envoyImage.repository=registry.corp.example/envoyproxy/envoy"],
        "gateway.envoyImage.repository is registry.corp.example/envoyproxy/envoy, which begins with a registry, and gateway.envoyImage.registry is docker.io",
    ),
    (
        &["gateway.image.repository=example.com/isthmus/gateway"],
        "gateway.image.repository is example.com/isthmus/gateway, which begins with a registry",
    ),
    (
        &["controller.enabled=true,controller.image.repository=localhost/mci-controller"],
        "controller.image.repository is localhost/mci-controller, which begins with a registry",
    ),
    (
        &["gateway.resources.requests.memory=2Gi"],
        "gateway.resources.requests.memory is 2Gi, and the limit is 1Gi",
    ),
    (
        &["controller.enabled=true,controller.resources.limits.memory=64Mi"],
        "controller.resources.requests.memory is 128Mi, and the limit is 64Mi",
    ),
    (
        &["gateway.envoyImage.tag="],
        "gateway.envoyImage.tag and gateway.envoyImage.digest are both empty",
    ),
    (
        &["gateway.gatewayClass.create=false,gateway.gatewayClass.parameters.replicas=1"],
        "gateway.gatewayClass.parameters belong to the GatewayClass",
    ),
    (
        &[
            "gateway.extraArgs[0]=--log-format=json,gateway.extraArgs[1]=--controller-name=example.com/a",
        ],
        "gateway.extraArgs has --controller-name: set gateway.controllerName",
    ),
    (
        &["gateway.extraEnv[0].name=CONTROLLER_NAME,gateway.extraEnv[0].value=example.com/a"],
        "gateway.extraEnv has CONTROLLER_NAME: set gateway.controllerName",
    ),
];

/// What is set, and where helm then says that the fault is.
const KINDS: &[(&str, &str)] = &[
    ("processor.enabeld=true", "at '/processor'"),
    ("replicas=2", "additional properties 'replicas'"),
    ("blockSize=sixteen", "at '/blockSize'"),
    (
        "inferenceExtension.replicas=0",
        "at '/inferenceExtension/replicas'",
    ),
    (
        "inferencePool.targetPorts[0].number=70000",
        "at '/inferencePool/targetPorts/0/number'",
    ),
    (
        "inferencePool.failureMode=Open",
        "at '/inferencePool/failureMode'",
    ),
    ("tokenCache.backend=valkey", "at '/tokenCache/backend'"),
    ("tokenCache.url=http://cache:6379", "at '/tokenCache/url'"),
    ("worker.kind=gpu", "at '/worker/kind'"),
    (
        "processor.tokenTransfer=key",
        "at '/processor/tokenTransfer'",
    ),
    (
        "inferenceExtension.externalProcessor.endpoint=http://me:secret@processor",
        "at '/inferenceExtension/externalProcessor/endpoint'",
    ),
    ("provider.name=gke", "at '/provider/name'"),
    ("provider.mode=Sidecar", "at '/provider/mode'"),
    ("image.tag=a/b", "at '/image/tag'"),
    (
        "inferenceExtension.service.annotations.internal=true",
        "at '/inferenceExtension/service/annotations/internal': got boolean, want string",
    ),
    ("router.image.digest=sha256:12", "at '/router/image/digest'"),
];
const SYSTEM_KINDS: &[(&str, &str)] = &[
    (
        "controler.enabled=true",
        "additional properties 'controler'",
    ),
    ("clusterName=West", "at '/clusterName'"),
    ("controller.image.digest=1", "at '/controller/image/digest'"),
    (
        "gateway.gatewayClass.parameters.replica=1",
        "at '/gateway/gatewayClass/parameters'",
    ),
    (
        "gateway.gatewayClass.parameters.serviceType=Headless",
        "at '/gateway/gatewayClass/parameters/serviceType'",
    ),
    (
        "gateway.gatewayClass.parameters.resources.requests=null",
        "at '/gateway/gatewayClass/parameters/resources/requests'",
    ),
];

pub(crate) fn combinations_that_cannot_work_are_refused_with_their_reason(
    helm: &Helm,
) -> Result<()> {
    for (chart, always, combinations) in [
        (POOL, &[SIM][..], COMBINATIONS),
        (SYSTEM, &[IMAGES], SYSTEM_COMBINATIONS),
    ] {
        for (sets, reason) in combinations {
            let sets = always.iter().chain(*sets).flat_map(|&set| ["--set", set]);
            let output = helm.try_template(chart, &sets.collect::<Vec<_>>())?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(!output.status.success(), "not refused: {reason}");
            // one fault, one reason
            let reasons = said.lines().filter_map(|line| line.strip_prefix("- "));
            let reasons: Vec<&str> = reasons.collect();
            let [only] = &*reasons else {
                anyhow::bail!("{reason}: {said}");
            };
            ensure!(only.starts_with(reason), "{reason}: {said}");
        }
    }
    let chart = crate::helm::chart();
    for (name, reason) in [
        (
            &*"a".repeat(48),
            "the release name is 48 characters long: at most 47",
        ),
        (
            "llama-3.1-8b",
            "the release name is llama-3.1-8b: lower-case",
        ),
        ("70b-chat", "the release name is 70b-chat: lower-case"),
    ] {
        let output =
            helm.try_offline(&["template", name, &*chart.to_string_lossy(), "--set", SIM])?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(said.contains(reason), "{said}");
    }
    // all at once, so that they are mended at once
    let output = helm.try_template(
        POOL,
        &[
            "--set",
            "image.hub=,router.enabled=true,metadataCenter.enabled=true,metadataCenter.host=a",
        ],
    )?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        said.lines().filter(|line| line.starts_with("- ")).count() == 4,
        "{said}"
    );
    Ok(())
}

/// Images that need no registry: those that nodes find by their digest, and those that nodes do not pull.
pub(crate) fn images_need_no_registry_where_nodes_pull_none_of_that_name(
    helm: &Helm,
) -> Result<()> {
    const DIGEST: &str =
        "digest=sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    let pool = "worker.kind=sim,worker.model=llama,image.hub=isthmus";
    for (chart, set) in [
        (SYSTEM, format!("gateway.image.{DIGEST}")),
        (SYSTEM, "gateway.image.pullPolicy=Never".to_owned()),
        (
            SYSTEM,
            "gateway.image.repository=example.com/isthmus/gateway".to_owned(),
        ),
        (POOL, format!("{pool},image.pullPolicy=Never")),
        (
            POOL,
            format!("{pool},inferenceExtension.image.{DIGEST},worker.sim.image.{DIGEST}"),
        ),
    ] {
        helm.template(chart, &["--set", &set])?;
    }
    Ok(())
}

pub(crate) fn values_of_another_kind_are_refused_by_the_schema(helm: &Helm) -> Result<()> {
    for (chart, always, kinds) in [
        (POOL, &["--set", SIM][..], KINDS),
        (SYSTEM, &["--set", IMAGES], SYSTEM_KINDS),
    ] {
        for (set, place) in kinds {
            let output = helm.try_template(chart, &[always, &["--set", set]].concat())?;
            let said = String::from_utf8_lossy(&output.stderr);
            ensure!(!output.status.success(), "not refused: {set}");
            ensure!(said.contains(place), "{set}: {said}");
        }
    }
    Ok(())
}
