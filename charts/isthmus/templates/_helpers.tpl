{{/* Labels of an object. Parameters: root, name. */}}
{{- define "isthmus.labels" -}}
app.kubernetes.io/name: {{ .name }}
app.kubernetes.io/part-of: isthmus
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* What a program's pods are found by. There is one release for a cluster, so its name is none of it. Parameter: name. */}}
{{- define "isthmus.selectorLabels" -}}
app.kubernetes.io/name: {{ .name }}
{{- end -}}

{{/* Name and labels of an object of the whole cluster. Parameters: root, name, object (its name, where that is another). */}}
{{- define "isthmus.clusterMetadata" -}}
name: {{ .object | default .name }}
labels:
  {{- include "isthmus.labels" . | nindent 2 }}
{{- end -}}

{{/* The same of one in the release's namespace. */}}
{{- define "isthmus.metadata" -}}
name: {{ .object | default .name }}
namespace: {{ .root.Release.Namespace }}
labels:
  {{- include "isthmus.labels" . | nindent 2 }}
{{- end -}}

{{/* An image's name. Parameters: image, tag (where the image names none). */}}
{{- define "isthmus.image" -}}
{{- with .image -}}
{{- with .registry }}{{ . }}/{{ end -}}
{{ .repository }}
{{- if or .tag (not .digest) }}:{{ .tag | default $.tag }}{{ end -}}
{{- with .digest }}@{{ . }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* "true" where an image's name has a registry, or a digest: else nodes ask Docker Hub for it. Parameters: image, tag. */}}
{{- define "isthmus.isFullyNamed" -}}
{{- or (not (empty .image.digest)) (regexMatch "^([^/]*[.:][^/]*|localhost)/" (include "isthmus.image" .)) -}}
{{- end -}}

{{/* Where both registry and repository begin with a registry: that of the repository. Parameter: an image. */}}
{{- define "isthmus.secondRegistry" -}}
{{- if .registry -}}
{{- regexFind "^([^/]*[.:][^/]*|localhost)/" .repository | trimSuffix "/" -}}
{{- end -}}
{{- end -}}

{{/* What is in the metadata of all pods. Parameters: root, name, values. */}}
{{- define "isthmus.podMetadata" -}}
{{- /* without the versions, which would restart pods that stay as they are */ -}}
{{- $own := dict "app.kubernetes.io/name" .name "app.kubernetes.io/part-of" "isthmus" -}}
labels:
  {{- merge $own .values.podLabels | toYaml | nindent 2 }}
{{- with .values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* What is in the specification of all pods. Parameters: root, name, values. */}}
{{- define "isthmus.podSpec" -}}
serviceAccountName: {{ .name }}
automountServiceAccountToken: true
enableServiceLinks: false
securityContext:
  {{- toYaml .root.Values.podSecurityContext | nindent 2 }}
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
{{- $own := dict "labelSelector" (dict "matchLabels" (fromYaml (include "isthmus.selectorLabels" .))) }}
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
{{- define "isthmus.container" -}}
image: {{ include "isthmus.image" (dict "image" .values.image "tag" .root.Chart.AppVersion) }}
imagePullPolicy: {{ .values.image.pullPolicy }}
resources:
  {{- toYaml .values.resources | nindent 2 }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{/* Arguments of all programs. Parameters: root, values. */}}
{{- define "isthmus.commonArgs" -}}
- {{ printf "--log-level=%s" .root.Values.logLevel | quote }}
- --log-format={{ .root.Values.logFormat }}
{{- range .values.extraArgs }}
- {{ . | quote }}
{{- end }}
{{- end -}}

{{/* The Lease of the gateways with this controller name: as the gateway itself names it. */}}
{{- define "isthmus.gatewayLease" -}}
{{- $controller := .Values.gateway.controllerName -}}
{{- if eq $controller "isthmus.dev/gateway" -}}
isthmus-gateway
{{- else -}}
{{- $domain := splitList "/" $controller | first -}}
{{- $path := trimPrefix (printf "%s/" $domain) $controller | lower -}}
isthmus-gateway.{{ regexReplaceAll "[^a-z0-9]" $path "-" | trimAll "-" }}.{{ $domain }}
{{- end -}}
{{- end -}}

{{/* The programs of the release, as a JSON object: name to replicas. */}}
{{- define "isthmus.programs" -}}
{{- $programs := dict -}}
{{- if .Values.controller.enabled -}}
{{- $_ := set $programs "isthmus-mci-controller" .Values.controller.replicas -}}
{{- end -}}
{{- if .Values.gateway.enabled -}}
{{- $_ := set $programs "isthmus-gateway" .Values.gateway.replicas -}}
{{- end -}}
{{- toJson $programs -}}
{{- end -}}

{{/* A quantity of Kubernetes, or a size such as 768MiB, as a number; empty where it is neither. */}}
{{- define "isthmus.quantity" -}}
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
{{- define "isthmus.resourcesReasons" -}}
{{- $requests := get .resources "requests" | default dict -}}
{{- $limits := get .resources "limits" | default dict -}}
{{- range $resource, $request := $requests }}
{{- $limit := get $limits $resource | toString }}
{{- $asked := include "isthmus.quantity" $request }}
{{- $most := include "isthmus.quantity" $limit }}
{{- if and $asked $most (gt (float64 $asked) (float64 $most)) }}
- {{ $.name }}.requests.{{ $resource }} is {{ $request }}, and the limit is {{ $limit }}, which is less. What you do not set is the chart's: set {{ $.name }}.limits.{{ $resource }} and the request
{{- end }}
{{- end }}
{{- end -}}
