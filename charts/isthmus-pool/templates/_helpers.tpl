{{/* Labels of an object. Parameters: root, component. */}}
{{- define "isthmus-pool.labels" -}}
{{ include "isthmus-pool.selectorLabels" . }}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* What a component's pods are found by. Parameters: root, component. */}}
{{- define "isthmus-pool.selectorLabels" -}}
app.kubernetes.io/instance: {{ .root.Release.Name }}
isthmus.dev/component: {{ .component }}
{{- end -}}

{{/* Name, namespace and labels of an object. Parameters: root, component. */}}
{{- define "isthmus-pool.metadata" -}}
name: {{ .root.Release.Name }}-{{ .component }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "isthmus-pool.labels" . | nindent 2 }}
{{- end -}}

{{/* Name that a Service of the release has in the cluster. Parameters: root, component. */}}
{{- define "isthmus-pool.host" -}}
{{ .root.Release.Name }}-{{ .component }}.{{ .root.Release.Namespace }}.svc
{{- end -}}

{{/* Image of a program of ours. Parameters: root, image (its name and digest). */}}
{{- define "isthmus-pool.image" -}}
{{- $common := .root.Values.image -}}
{{- $name := printf "%s/%s" $common.hub .image.name -}}
{{- if or $common.tag (not .image.digest) -}}
{{- $name = printf "%s:%s" $name ($common.tag | default .root.Chart.AppVersion) -}}
{{- end -}}
{{ $name }}{{ with .image.digest }}@{{ . }}{{ end }}
{{- end -}}

{{/* Image of a program of others. Parameter: an image's hub, name, tag and digest. */}}
{{- define "isthmus-pool.foreignImage" -}}
{{ .hub }}/{{ .name }}:{{ .tag }}{{ with .digest }}@{{ . }}{{ end }}
{{- end -}}

{{/* "true" where a path of images begins with a registry: else nodes ask Docker Hub for them. */}}
{{- define "isthmus-pool.namesRegistry" -}}
{{- regexMatch "^([^/]*[.:][^/]*|localhost)/" (printf "%s/" .) -}}
{{- end -}}

{{/* Labels that the pool selects its pods by. */}}
{{- define "isthmus-pool.poolLabels" -}}
{{- $labels := .Values.inferencePool.modelServers.matchLabels -}}
{{- if $labels -}}
{{- toYaml $labels -}}
{{- else -}}
{{- include "isthmus-pool.selectorLabels" (dict "root" . "component" "worker") -}}
{{- end -}}
{{- end -}}

{{/* The first port of the model servers. */}}
{{- define "isthmus-pool.targetPort" -}}
{{ (index .Values.inferencePool.targetPorts 0).number }}
{{- end -}}

{{/* "true" where endpoint pickers call a Processor. */}}
{{- define "isthmus-pool.usesProcessor" -}}
{{- $external := .Values.inferenceExtension.externalProcessor -}}
{{- if eq (toString $external.enabled) "auto" -}}
{{- or .Values.processor.enabled (ne $external.endpoint "") -}}
{{- else -}}
{{- $external.enabled -}}
{{- end -}}
{{- end -}}

{{/* "true" where they have it ask a Router. */}}
{{- define "isthmus-pool.usesRouter" -}}
{{- $external := .Values.inferenceExtension.externalProcessor -}}
{{- if eq (toString $external.router) "auto" -}}
{{- and .Values.router.enabled (eq (include "isthmus-pool.usesProcessor" .) "true") -}}
{{- else -}}
{{- $external.router -}}
{{- end -}}
{{- end -}}

{{- define "isthmus-pool.processorEndpoint" -}}
{{- .Values.inferenceExtension.externalProcessor.endpoint | default (printf "http://%s:8090" (include "isthmus-pool.host" (dict "root" . "component" "processor"))) -}}
{{- end -}}

{{/* URL of the Router for the Processor; empty without one. */}}
{{- define "isthmus-pool.routerEndpoint" -}}
{{- if .Values.processor.routerEndpoint -}}
{{ .Values.processor.routerEndpoint }}
{{- else if .Values.router.enabled -}}
http://{{ include "isthmus-pool.host" (dict "root" . "component" "router") }}:8091
{{- end -}}
{{- end -}}

{{/* How ids reach workers: auto, cache, direct or none. */}}
{{- define "isthmus-pool.tokenTransfer" -}}
{{- $asked := .Values.processor.tokenTransfer -}}
{{- if and (not $asked) (ne .Values.worker.kind "sim") -}}
none
{{- else if and (eq .Values.tokenCache.backend "none") (has $asked (list "" "auto")) -}}
direct
{{- else -}}
{{ $asked | default "auto" }}
{{- end -}}
{{- end -}}

{{/* Whether the release's workers take ids: by key or in the body. */}}
{{- define "isthmus-pool.acceptTokens" -}}
{{- if or (ne (include "isthmus-pool.usesProcessor" .) "true") (eq (include "isthmus-pool.tokenTransfer" .) "none") -}}
none
{{- else -}}
key,body
{{- end -}}
{{- end -}}

{{/* TOKEN_CACHE_ENDPOINT as an environment variable. Parameters: root, own (the value for the Processor itself, with memory). */}}
{{- define "isthmus-pool.tokenCacheEnv" -}}
{{- $cache := .root.Values.tokenCache -}}
- name: TOKEN_CACHE_ENDPOINT
{{- if eq $cache.backend "none" }}
  value: none
{{- else if eq $cache.backend "memory" }}
  value: {{ .own | default (printf "http://%s:8092" (include "isthmus-pool.host" (dict "root" .root "component" "processor"))) }}
{{- else if $cache.urlSecret.name }}
  valueFrom: {secretKeyRef: {name: {{ $cache.urlSecret.name }}, key: {{ $cache.urlSecret.key }}}}
{{- else }}
  value: {{ $cache.url | default (printf "redis://%s:6379" (include "isthmus-pool.host" (dict "root" .root "component" "token-cache"))) | quote }}
{{- end }}
{{- end -}}

{{/* Where spans go, as environment variables; empty without tracing. */}}
{{- define "isthmus-pool.tracingEnv" -}}
{{- with .Values.inferenceExtension.tracing -}}
{{- if .enabled -}}
- {name: OTEL_EXPORTER_OTLP_ENDPOINT, value: {{ .otelExporterEndpoint | quote }}}
- {name: OTEL_TRACES_SAMPLER, value: {{ .sampling.sampler | quote }}}
- {name: OTEL_TRACES_SAMPLER_ARG, value: {{ .sampling.samplerArg | quote }}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Host and port of the Metadata-Center for endpoint pickers; empty without one. */}}
{{- define "isthmus-pool.metadataHost" -}}
{{- if .Values.metadataCenter.enabled -}}
{{ include "isthmus-pool.host" (dict "root" . "component" "metadata-center") }}
{{- else -}}
{{ .Values.metadataCenter.host }}
{{- end -}}
{{- end -}}

{{/* Name and namespace of the pod, as variables. */}}
{{- define "isthmus-pool.podEnv" -}}
- name: POD_NAME
  valueFrom: {fieldRef: {fieldPath: metadata.name}}
- name: POD_NAMESPACE
  valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
{{- end -}}

{{/* What is in the metadata of all pods. Parameters: root, component, values, config (what a change of restarts them),
     poolLabels (what the pool selects workers by). */}}
{{- define "isthmus-pool.podMetadata" -}}
{{- /* without the versions, which would restart pods that stay as they are */}}
{{- $own := fromYaml (include "isthmus-pool.selectorLabels" .) -}}
{{- $name := dict "app.kubernetes.io/name" .root.Chart.Name -}}
labels:
  {{- merge $own (.poolLabels | default dict) $name (.values.podLabels | default dict) | toYaml | nindent 2 }}
{{- if or .config .values.podAnnotations }}
annotations:
  {{- with .config }}
  isthmus.dev/config-hash: {{ . | sha256sum | trunc 16 | quote }}
  {{- end }}
  {{- with .values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- end -}}

{{/* What is in the specification of all pods. Parameters: root, component, values, token (whether they call the API
     server). */}}
{{- define "isthmus-pool.podSpec" -}}
automountServiceAccountToken: {{ .token | default false }}
enableServiceLinks: false
securityContext: {{ .root.Values.podSecurityContext | toJson }}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .values.affinity }}
affinity: {{ toJson . }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- if .values.topologySpreadConstraints }}
{{- $own := dict "labelSelector" (dict "matchLabels" (fromYaml (include "isthmus-pool.selectorLabels" .))) }}
topologySpreadConstraints:
{{- range .values.topologySpreadConstraints }}
{{- /* without a selector it would count no pod */}}
- {{ merge (deepCopy .) $own | toJson }}
{{- end }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{/* What is in all containers. Parameters: root, values. */}}
{{- define "isthmus-pool.container" -}}
imagePullPolicy: {{ .root.Values.image.pullPolicy }}
resources: {{ toJson .values.resources }}
securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end -}}

{{/* Arguments of all programs of ours. Parameters: root, values. */}}
{{- define "isthmus-pool.commonArgs" -}}
- --log-level={{ .root.Values.logLevel }}
- --log-format={{ .root.Values.logFormat }}
{{- range .values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* A rollout of programs of which only a leader is ready: waiting for a second ready one would never end. The old pods are
     all deleted at once, so nobody answers from the end of the old leader to the first new one. */}}
{{- define "isthmus-pool.leaderStrategy" -}}
strategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 100%, maxSurge: 100%}}
{{- end -}}

{{/* A Valkey and its Service. Parameters: root, component, values (image, maxMemory, resources), policy (what gives way). */}}
{{- define "isthmus-pool.valkey" -}}
apiVersion: apps/v1
kind: Deployment
metadata:
  {{- include "isthmus-pool.metadata" . | nindent 2 }}
spec:
  replicas: 1
  # two would be two states
  strategy: {type: Recreate}
  selector:
    matchLabels:
      {{- include "isthmus-pool.selectorLabels" . | nindent 6 }}
  template:
    metadata:
      {{- include "isthmus-pool.podMetadata" . | nindent 6 }}
    spec:
      {{- include "isthmus-pool.podSpec" . | nindent 6 }}
      containers:
      - name: valkey
        image: {{ include "isthmus-pool.foreignImage" .values.image }}
        {{- include "isthmus-pool.container" . | nindent 8 }}
        args:
        - --save
        - ""
        - --appendonly
        - "no"
        # who may connect says the NetworkPolicy
        - --protected-mode
        - "no"
        - --maxmemory
        - {{ .values.maxMemory | quote }}
        - --maxmemory-policy
        - {{ .policy }}
        ports:
        - {name: redis, containerPort: 6379}
        readinessProbe:
          tcpSocket: {port: redis}
          periodSeconds: 2
        livenessProbe:
          tcpSocket: {port: redis}
          periodSeconds: 10
---
apiVersion: v1
kind: Service
metadata:
  {{- include "isthmus-pool.metadata" . | nindent 2 }}
spec:
  selector:
    {{- include "isthmus-pool.selectorLabels" . | nindent 4 }}
  ports:
  - {name: redis, port: 6379, targetPort: redis}
{{- end -}}

{{/* "true" where workers publish KV events. */}}
{{- define "isthmus-pool.publishesEvents" -}}
{{- and .Values.router.enabled (ne .Values.router.kvEvents "off") -}}
{{- end -}}

{{- define "isthmus-pool.deploysTokenCache" -}}
{{- and .Values.processor.enabled (eq .Values.tokenCache.backend "redis") .Values.tokenCache.redis.deploy -}}
{{- end -}}

{{- define "isthmus-pool.deploysMetadataRedis" -}}
{{- and .Values.metadataCenter.enabled (eq .Values.metadataCenter.backend "redis") .Values.metadataCenter.redis.deploy -}}
{{- end -}}

{{/* As podMetadata, with the labels that the pool selects. Parameters: root, component, values. */}}
{{- define "isthmus-pool.workerMetadata" -}}
{{- include "isthmus-pool.podMetadata" (merge (dict "poolLabels" (deepCopy .root.Values.inferencePool.modelServers.matchLabels)) .) -}}
{{- end -}}

{{/* Ports of a model server's container. */}}
{{- define "isthmus-pool.workerPorts" -}}
{{- range $index, $port := .Values.inferencePool.targetPorts }}
- {name: {{ ternary "http" (printf "http-%d" $index) (eq $index 0) }}, containerPort: {{ $port.number }}}
{{- end }}
{{- if eq (include "isthmus-pool.publishesEvents" .) "true" }}
{{- range $index, $port := .Values.inferencePool.targetPorts }}
- {name: kv-events-{{ $index }}, containerPort: {{ add $.Values.kvEvents.port $index }}}
{{- end }}
{{- range $index, $port := .Values.inferencePool.targetPorts }}
- {name: kv-replay-{{ $index }}, containerPort: {{ add $.Values.kvEvents.replayPort $index }}}
{{- end }}
{{- end }}
{{- end -}}

{{/* A command that waits for a program. Parameters: root, component, values. */}}
{{- define "isthmus-pool.waitFor" -}}
{{- if .values.enableLeaderElection -}}
{{- /* only the leader is ever ready, so a rollout of several never ends */ -}}
kubectl -n {{ .root.Release.Namespace }} wait deployment/{{ .root.Release.Name }}-{{ .component }} --for=jsonpath='{.status.readyReplicas}'=1 --timeout=120s
{{- else -}}
kubectl -n {{ .root.Release.Namespace }} rollout status deployment/{{ .root.Release.Name }}-{{ .component }} --timeout=120s
{{- end -}}
{{- end -}}

{{/* A quantity of Kubernetes, or a size such as 768MiB, as a number; empty where it is neither. */}}
{{- define "isthmus-pool.quantity" -}}
{{- $text := toString . -}}
{{- $number := regexFind "^[0-9]+([.][0-9]*)?([eE][-+]?[0-9]+)?" $text -}}
{{- $unit := trimPrefix $number $text | trimSuffix "B" -}}
{{- $units := dict "" 1.0 "m" 0.001 "k" 1e3 "K" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 -}}
{{- $units = merge $units (dict "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0) -}}
{{- if and $number (hasKey $units $unit) -}}
{{- mulf (float64 $number) (get $units $unit) -}}
{{- end -}}
{{- end -}}

{{/* Why an API server refuses the resources of a container. Parameters: name (of the value), resources. */}}
{{- define "isthmus-pool.resourcesReasons" -}}
{{- $requests := get .resources "requests" | default dict -}}
{{- $limits := get .resources "limits" | default dict -}}
{{- range $resource, $request := $requests }}
{{- $limit := get $limits $resource | toString }}
{{- $asked := include "isthmus-pool.quantity" $request }}
{{- $most := include "isthmus-pool.quantity" $limit }}
{{- if and $asked $most (gt (float64 $asked) (float64 $most)) }}
- {{ $.name }}.requests.{{ $resource }} is {{ $request }}, and the limit is {{ $limit }}, which is less. What you do not set is the chart's: set {{ $.name }}.limits.{{ $resource }} and the request
{{- end }}
{{- end }}
{{- end -}}

{{/* Whether Istio's gateways ask the endpoint picker by an EnvoyFilter. */}}
{{- define "isthmus-pool.usesEnvoyFilter" -}}
{{- and (eq .Values.provider.name "istio") (eq .Values.provider.mode "EnvoyFilter") -}}
{{- end -}}

{{/* Host by which Istio knows a Service: in the cluster's domain, which destinationRule.host may name. Parameters: root, component. */}}
{{- define "isthmus-pool.istioHost" -}}
{{- $host := .root.Values.provider.istio.destinationRule.host -}}
{{- $picker := printf "%s-epp." .root.Release.Name -}}
{{- if not $host -}}
{{- printf "%s.cluster.local" (include "isthmus-pool.host" .) -}}
{{- else if and (ne .component "epp") (hasPrefix $picker $host) -}}
{{- printf "%s-%s.%s" .root.Release.Name .component (trimPrefix $picker $host) -}}
{{- else if ne .component "epp" -}}
{{- printf "%s.cluster.local" (include "isthmus-pool.host" .) -}}
{{- else -}}
{{- $host -}}
{{- end -}}
{{- end -}}

{{/* Namespace of the gateway whose requests the endpoint picker picks for. */}}
{{- define "isthmus-pool.istioGatewayNamespace" -}}
{{- .Values.provider.istio.envoyFilter.namespace | default .Values.httpRoute.inferenceGatewayNamespace | default .Release.Namespace -}}
{{- end -}}

{{/* Names of the routes whose requests the endpoint picker picks for, as a list in YAML. */}}
{{- define "isthmus-pool.istioRoutes" -}}
{{- $own := ternary (list (printf "%s.%s.0" .Release.Namespace .Release.Name)) list .Values.httpRoute.create -}}
{{- concat $own .Values.provider.istio.envoyFilter.routes | uniq | toYaml -}}
{{- end -}}
