{{/* Fails with the reason of each combination of values that cannot work. */}}
{{- define "isthmus-pool.validate" -}}
{{- $reasons := list -}}
{{- range list "names" "images" "pool" "epp" "service" "processor" "router" "tokenCache" "metadataCenter" "worker" "provider" "resources" -}}
{{- $found := include (printf "isthmus-pool.validate.%s" .) $ | trim -}}
{{- if $found -}}
{{- $reasons = append $reasons $found -}}
{{- end -}}
{{- end -}}
{{- if $reasons -}}
{{- fail (printf "these values cannot work:\n%s" (join "\n" $reasons)) -}}
{{- end -}}
{{- end -}}

{{- define "isthmus-pool.validate.names" -}}
{{- if gt (len .Release.Name) 47 }}
- the release name is {{ len .Release.Name }} characters long: at most 47, since its Services are named after it
{{- end }}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" .Release.Name) }}
- the release name is {{ .Release.Name }}: lower-case letters, digits and hyphens, a letter first and no hyphen last, since its Services are named after it
{{- end }}
{{- end -}}

{{- define "isthmus-pool.validate.images" -}}
{{- $images := dict "inferenceExtension" .Values.inferenceExtension.image -}}
{{- range list "processor" "router" "metadataCenter" }}
{{- $program := get $.Values . }}
{{- if $program.enabled }}
{{- $_ := set $images . $program.image }}
{{- end }}
{{- end }}
{{- if eq .Values.worker.kind "sim" }}
{{- $_ := set $images "worker.sim" .Values.worker.sim.image }}
{{- end }}
{{- $loose := list }}
{{- range $name, $image := $images }}
{{- if not $image.digest }}
{{- $loose = append $loose (printf "%s.image.digest" $name) }}
{{- end }}
{{- end }}
{{- $hub := .Values.image.hub }}
{{- $next := "the registry and path that the images of Isthmus were pushed to (cargo xtask images --push registry.example.com/isthmus), such as registry.example.com/isthmus" }}
{{- $pulls := ne .Values.image.pullPolicy "Never" }}
{{- if not $hub }}
- image.hub is empty: set it to {{ $next }}; where the nodes have the images already, set image.hub=isthmus and image.pullPolicy=Never
{{- else if and $pulls $loose (ne (include "isthmus-pool.namesRegistry" $hub) "true") }}
- image.hub is {{ $hub }}, which names no registry: nodes would ask Docker Hub for images that are not ours. Set it to {{ $next }}; or set {{ join ", " $loose }}; or, where the nodes have the images already, image.pullPolicy=Never
{{- end }}
{{- $foreign := dict }}
{{- if eq (include "isthmus-pool.deploysTokenCache" .) "true" }}
{{- $_ := set $foreign "tokenCache.redis.image" (list .Values.tokenCache.redis.image "docker.io/valkey") }}
{{- end }}
{{- if eq (include "isthmus-pool.deploysMetadataRedis" .) "true" }}
{{- $_ := set $foreign "metadataCenter.redis.image" (list .Values.metadataCenter.redis.image "docker.io/valkey") }}
{{- end }}
{{- if eq .Values.worker.kind "vllm" }}
{{- $_ := set $foreign "worker.vllm.image" (list .Values.worker.vllm.image "docker.io/vllm") }}
{{- end }}
{{- range $name, $pair := $foreign }}
{{- $image := first $pair }}
{{- if and $pulls (not $image.digest) (ne (include "isthmus-pool.namesRegistry" $image.hub) "true") }}
- {{ $name }}.hub is {{ $image.hub }}, which names no registry: set it to one with its path, such as {{ last $pair }}, or set {{ $name }}.digest
{{- end }}
{{- end }}
{{- end -}}

{{- define "isthmus-pool.validate.pool" -}}
{{- $labels := .Values.inferencePool.modelServers.matchLabels -}}
{{- if eq .Values.worker.kind "none" }}
{{- if not $labels }}
- inferencePool.modelServers.matchLabels is empty: name the labels of your model servers' pods, or have the release run some by worker.kind
{{- end }}
{{- else }}
{{- range $name, $value := fromYaml (include "isthmus-pool.selectorLabels" (dict "root" . "component" "worker")) }}
{{- if and (hasKey $labels $name) (ne (get $labels $name) $value) }}
- inferencePool.modelServers.matchLabels has {{ $name }}: the release's own workers have the value {{ $value }} there
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "isthmus-pool.validate.epp" -}}
{{- $epp := .Values.inferenceExtension -}}
{{- if and $epp.pluginsCustomConfig (not (hasKey $epp.pluginsCustomConfig $epp.pluginsConfigFile)) }}
- inferenceExtension.pluginsConfigFile is {{ $epp.pluginsConfigFile }}: pluginsCustomConfig has only {{ keys $epp.pluginsCustomConfig | sortAlpha | join ", " }}
{{- end }}
{{- if and $epp.llmFilterConfig (hasKey $epp.pluginsCustomConfig "llm-filter.yaml") }}
- inferenceExtension.pluginsCustomConfig has a file llm-filter.yaml, which is the name of llmFilterConfig's: rename it
{{- end }}
{{- $external := $epp.externalProcessor -}}
{{- $uses := eq (include "isthmus-pool.usesProcessor" .) "true" -}}
{{- if and $external.endpoint .Values.processor.enabled }}
- inferenceExtension.externalProcessor.endpoint names a Processor elsewhere, and processor.enabled runs one here: choose one
{{- end }}
{{- if and $uses (not $external.endpoint) (not .Values.processor.enabled) }}
- inferenceExtension.externalProcessor.enabled needs a Processor: set processor.enabled, or endpoint to the URL of one elsewhere
{{- end }}
{{- if eq (include "isthmus-pool.usesRouter" .) "true" }}
{{- if not $uses }}
- inferenceExtension.externalProcessor.router needs the Processor, which asks the Router: it is not used (externalProcessor.enabled)
{{- else if and (not $external.endpoint) (not (include "isthmus-pool.routerEndpoint" .)) }}
- inferenceExtension.externalProcessor.router needs a Router: set router.enabled, or processor.routerEndpoint to the URL of one elsewhere
{{- end }}
{{- end }}
{{- with $epp.monitoring.prometheus }}
{{- if and .enabled .auth.enabled (not .auth.secretName) }}
- inferenceExtension.monitoring.prometheus.auth.secretName is empty: Prometheus needs a token for these metrics
{{- end }}
{{- end }}
{{- end -}}

{{- define "isthmus-pool.validate.service" -}}
{{- $type := .Values.inferenceExtension.service.type -}}
{{- if ne $type "LoadBalancer" }}
{{- range list "loadBalancerClass" "loadBalancerSourceRanges" }}
{{- if get $.Values.inferenceExtension.service . }}
- inferenceExtension.service.{{ . }} is for the type LoadBalancer: it is {{ $type }}
{{- end }}
{{- end }}
{{- end }}
{{- $name := printf "%s-epp" .Release.Name -}}
{{- /* without a cluster, as in helm template, nothing is found */}}
{{- $live := lookup "v1" "Service" .Release.Namespace $name | default dict -}}
{{- $address := dig "spec" "clusterIP" "" $live -}}
{{- $is := ternary "is headless" "has a cluster address" (eq $address "None") -}}
{{- if and $address (ne (eq $type "Headless") (eq $address "None")) }}
- inferenceExtension.service.type is {{ $type }}: the Service {{ $name }} {{ $is }}, which cannot be changed. Delete it, and this makes it anew; meanwhile nobody reaches the endpoint picker: kubectl -n {{ .Release.Namespace }} delete service {{ $name }}
{{- end }}
{{- end -}}

{{- define "isthmus-pool.validate.processor" -}}
{{- if .Values.processor.enabled }}
{{- if not .Values.processor.models }}
- processor.models is empty: the Processor needs a model to be ready
{{- end }}
{{- if not .Values.processor.modelsVolume }}
{{- range .Values.processor.models }}
{{- if not (hasPrefix "/" .path) }}
- processor.models: the path {{ .path }} is one in processor.modelsVolume, which is empty
{{- end }}
{{- end }}
{{- end }}
{{- $transfer := include "isthmus-pool.tokenTransfer" . -}}
{{- if and (eq $transfer "cache") (eq .Values.tokenCache.backend "none") }}
- processor.tokenTransfer is cache, and tokenCache.backend none: there would be nowhere to put ids
{{- end }}
{{- if and (ne $transfer "none") (eq .Values.worker.kind "vllm") }}
- processor.tokenTransfer is {{ $transfer }}: vLLM takes text alone, so it must be none
{{- end }}
{{- if and (has $transfer (list "auto" "cache")) .Values.httpRoute.create (lt (int .Values.tokenCache.ttlSeconds) (int .Values.httpRoute.requestTimeoutSeconds)) }}
- tokenCache.ttlSeconds is {{ .Values.tokenCache.ttlSeconds }}: less than httpRoute.requestTimeoutSeconds ({{ .Values.httpRoute.requestTimeoutSeconds }}), so a retry could find its ids gone
{{- end }}
{{- end }}
{{- end -}}

{{- define "isthmus-pool.validate.router" -}}
{{- $router := .Values.router -}}
{{- if $router.enabled }}
{{- if not .Values.processor.enabled }}
- router.enabled needs processor.enabled: nobody else asks the Router
{{- end }}
{{- if and (gt (int $router.replicas) 1) (not $router.enableLeaderElection) }}
- router.replicas is {{ $router.replicas }}: several Routers would each know a part of the load; set router.enableLeaderElection
{{- end }}
{{- if .Values.processor.routerEndpoint }}
- processor.routerEndpoint names a Router elsewhere, and router.enabled runs one here: choose one
{{- end }}
{{- end }}
{{- $ranks := len .Values.inferencePool.targetPorts -}}
{{- $events := int .Values.kvEvents.port -}}
{{- $replay := int .Values.kvEvents.replayPort -}}
{{- if eq (include "isthmus-pool.publishesEvents" .) "true" }}
{{- if and (lt $replay (add $events $ranks | int)) (lt $events (add $replay $ranks | int)) }}
- kvEvents.port {{ $events }} and kvEvents.replayPort {{ $replay }} overlap: with {{ $ranks }} target ports a worker has {{ $ranks }} of each, counted up
{{- end }}
{{- end }}
{{- end -}}

{{- define "isthmus-pool.validate.tokenCache" -}}
{{- $cache := .Values.tokenCache -}}
{{- if .Values.processor.enabled }}
{{- if and (eq $cache.backend "memory") (gt (int .Values.processor.replicas) 1) }}
- processor.replicas is {{ .Values.processor.replicas }} with tokenCache.backend memory: a worker would ask a Processor that does not have the ids; use redis or none
{{- end }}
{{- if eq $cache.backend "redis" }}
{{- if not (or $cache.url $cache.urlSecret.name $cache.redis.deploy) }}
- tokenCache.backend redis needs tokenCache.url, tokenCache.urlSecret or tokenCache.redis.deploy
{{- else if gt (add (ternary 1 0 (ne $cache.url "")) (ternary 1 0 (ne $cache.urlSecret.name "")) (ternary 1 0 $cache.redis.deploy)) 1 }}
- tokenCache.url, tokenCache.urlSecret and tokenCache.redis.deploy each name a Redis: choose one
{{- end }}
{{- else if $cache.redis.deploy }}
- tokenCache.redis.deploy needs tokenCache.backend redis: it is {{ $cache.backend }}
{{- end }}
{{- else if $cache.redis.deploy }}
- tokenCache.redis.deploy needs processor.enabled: nobody else writes ids
{{- else if and .Values.inferenceExtension.externalProcessor.endpoint (eq .Values.worker.kind "sim") (ne (include "isthmus-pool.acceptTokens" .) "none") }}
{{- if eq $cache.backend "memory" }}
- tokenCache.backend memory needs processor.enabled: the workers would ask a Processor of this release for the ids of one elsewhere; use redis with its tokenCache.url, or none
{{- else if and (eq $cache.backend "redis") (not (or $cache.url $cache.urlSecret.name)) }}
- tokenCache.backend redis needs tokenCache.url or tokenCache.urlSecret: those of the Processor elsewhere
{{- end }}
{{- end }}
{{- end -}}

{{- define "isthmus-pool.validate.metadataCenter" -}}
{{- $center := .Values.metadataCenter -}}
{{- if $center.enabled }}
{{- if $center.host }}
- metadataCenter.host names one elsewhere, and metadataCenter.enabled runs one here: choose one
{{- end }}
{{- if eq $center.backend "memory" }}
{{- if gt (int $center.replicas) 1 }}
- metadataCenter.replicas is {{ $center.replicas }} with the backend memory: each would have a state of its own; use redis
{{- end }}
{{- if $center.redis.deploy }}
- metadataCenter.redis.deploy needs metadataCenter.backend redis: it is memory
{{- end }}
{{- else if not (or $center.redis.url $center.redis.urlSecret.name $center.redis.deploy) }}
- metadataCenter.backend redis needs metadataCenter.redis.url, metadataCenter.redis.urlSecret or metadataCenter.redis.deploy
{{- else if gt (add (ternary 1 0 (ne $center.redis.url "")) (ternary 1 0 (ne $center.redis.urlSecret.name "")) (ternary 1 0 $center.redis.deploy)) 1 }}
- metadataCenter.redis.url, metadataCenter.redis.urlSecret and metadataCenter.redis.deploy each name a Redis: choose one
{{- end }}
{{- end }}
{{- end -}}

{{- define "isthmus-pool.validate.worker" -}}
{{- $worker := .Values.worker -}}
{{- $ports := .Values.inferencePool.targetPorts -}}
{{- if and (ne $worker.kind "none") (not $worker.model) }}
- worker.model is empty: name the model that the workers serve
{{- end }}
{{- if $worker.adapter.enabled }}
- worker.adapter.enabled: there is no adapter yet that gives vLLM ids; without it vLLM gets text, and Processor and Router choose the worker all the same
{{- end }}
{{- if eq $worker.kind "vllm" }}
{{- if gt (len $ports) 1 }}
- inferencePool.targetPorts has {{ len $ports }} ports: the vLLM of this chart serves one
{{- end }}
{{- end }}
{{- if eq $worker.kind "sim" }}
{{- range $index, $port := $ports }}
{{- if ne (int $port.number) (add (index $ports 0).number $index | int) }}
- inferencePool.targetPorts has {{ $port.number }}: the ports of simulated workers count up from the first
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "isthmus-pool.validate.provider" -}}
{{- $filter := .Values.provider.istio.envoyFilter -}}
{{- if eq (include "isthmus-pool.usesEnvoyFilter" .) "true" }}
{{- if not (include "isthmus-pool.istioRoutes" . | fromYamlArray) }}
- provider.istio.envoyFilter.routes is empty: name the routes whose requests the endpoint picker picks for, or have the release make one by httpRoute.create
{{- end }}
{{- if and $filter.workloadSelector (not $filter.namespace) }}
- provider.istio.envoyFilter.namespace is empty: name that of the gateway's pods, such as istio-system
{{- end }}
{{- $namespace := .Values.httpRoute.inferenceGatewayNamespace | default .Release.Namespace }}
{{- if and $filter.namespace (not $filter.workloadSelector) (ne $filter.namespace $namespace) }}
- provider.istio.envoyFilter.namespace is {{ $filter.namespace }}, and the Gateway {{ .Values.httpRoute.inferenceGatewayName }} is in {{ $namespace }}: set httpRoute.inferenceGatewayNamespace to {{ $filter.namespace }}, or for a classic gateway provider.istio.envoyFilter.workloadSelector
{{- end }}
{{- if and $filter.workloadSelector .Values.httpRoute.create }}
- provider.istio.envoyFilter.workloadSelector is for a classic gateway, and httpRoute.create makes a route of a Gateway of Gateway API: leave workloadSelector empty and set httpRoute.inferenceGatewayName, or set httpRoute.create to false and name the VirtualService's routes in provider.istio.envoyFilter.routes
{{- end }}
{{- $host := .Values.provider.istio.destinationRule.host }}
{{- if and $host (not (contains ".svc." $host)) }}
- provider.istio.destinationRule.host is {{ $host }}: with provider.mode EnvoyFilter write the whole name, {{ .Release.Name }}-epp.{{ .Release.Namespace }}.svc. and the cluster's domain
{{- end }}
{{- with .Values.inferencePool.targetPorts }}
{{- if gt (len .) 1 }}
- inferencePool.targetPorts has {{ len . }} ports: with provider.mode EnvoyFilter model servers have one
{{- end }}
{{- end }}
{{- else if ne .Values.provider.mode "InferencePool" }}
- provider.mode is {{ .Values.provider.mode }}, which needs provider.name istio: it is {{ .Values.provider.name }}
{{- end }}
{{- end -}}

{{- define "isthmus-pool.validate.resources" -}}
{{- $all := dict "inferenceExtension" .Values.inferenceExtension.resources -}}
{{- range list "processor" "router" "metadataCenter" }}
{{- $program := get $.Values . }}
{{- if $program.enabled }}
{{- $_ := set $all . $program.resources }}
{{- end }}
{{- end }}
{{- if eq (include "isthmus-pool.deploysTokenCache" .) "true" }}
{{- $_ := set $all "tokenCache.redis" .Values.tokenCache.redis.resources }}
{{- end }}
{{- if eq (include "isthmus-pool.deploysMetadataRedis" .) "true" }}
{{- $_ := set $all "metadataCenter.redis" .Values.metadataCenter.redis.resources }}
{{- end }}
{{- if ne .Values.worker.kind "none" }}
{{- $_ := set $all "worker" .Values.worker.resources }}
{{- end }}
{{- range $name, $resources := $all }}
{{- include "isthmus-pool.resourcesReasons" (dict "name" (printf "%s.resources" $name) "resources" $resources) }}
{{- end }}
{{- if .Values.router.enabled }}
{{- $limit := get (get .Values.router.resources "limits" | default dict) "memory" | toString }}
{{- $most := include "isthmus-pool.quantity" $limit }}
{{- $index := include "isthmus-pool.quantity" .Values.router.indexMaxBytes }}
{{- /* 1.25 GiB for all else */}}
{{- if and $most $index (gt (addf (float64 $index) 1342177280.0) (float64 $most)) }}
- router.indexMaxBytes is {{ .Values.router.indexMaxBytes }}, which with 1.25GiB for all else is more than the limit, {{ $limit }}: raise router.resources.limits.memory
{{- end }}
{{- end }}
{{- end -}}
