{{/* Fails with the reason of each combination of values that cannot work. */}}
{{- define "isthmus.validate" -}}
{{- $reasons := include "isthmus.validate.reasons" . | trim -}}
{{- if $reasons -}}
{{- fail (printf "these values cannot work:\n%s" $reasons) -}}
{{- end -}}
{{- end -}}

{{- define "isthmus.validate.reasons" -}}
{{- $controller := .Values.controller -}}
{{- if not (or $controller.enabled .Values.gateway.enabled .Values.member.enabled) }}
- controller.enabled, gateway.enabled and member.enabled are all false: the release would be empty
{{- end }}
{{- if and $controller.enabled $controller.selfName (not .Values.member.enabled) }}
- controller.selfName is {{ $controller.selfName }}: this cluster is a member then, which needs member.enabled
{{- end }}
{{- if and (or $controller.selfPodCidrs $controller.selfExportNamespaces) (not $controller.selfName) }}
- controller.selfPodCidrs and controller.selfExportNamespaces are of this cluster as a member: set controller.selfName, its name
{{- end }}
{{- range $name := list "controller" "gateway" }}
{{- $program := get $.Values $name }}
{{- $image := dict "image" $program.image "tag" $.Chart.AppVersion }}
{{- if and $program.enabled (ne $program.image.pullPolicy "Never") (ne (include "isthmus.isFullyNamed" $image) "true") }}
- {{ $name }}.image names no registry: nodes would ask Docker Hub for {{ $program.image.repository }}, which is not ours. Set {{ $name }}.image.registry to where the images were pushed (cargo xtask images --push registry.example.com/isthmus), such as registry.example.com; or {{ $name }}.image.digest; or, where the nodes have it already, {{ $name }}.image.pullPolicy=Never
{{- end }}
{{- end }}
{{- range $name := list "controller" "gateway" }}
{{- $program := get $.Values $name }}
{{- if $program.enabled }}
{{- include "isthmus.resourcesReasons" (dict "name" (printf "%s.resources" $name) "resources" $program.resources) }}
{{- end }}
{{- end }}
{{- $images := dict }}
{{- if $controller.enabled }}
{{- $_ := set $images "controller.image" $controller.image }}
{{- end }}
{{- if .Values.gateway.enabled }}
{{- $_ := set $images "gateway.image" .Values.gateway.image }}
{{- $_ := set $images "gateway.envoyImage" .Values.gateway.envoyImage }}
{{- end }}
{{- range $name, $image := $images }}
{{- with include "isthmus.secondRegistry" $image }}
- {{ $name }}.repository is {{ $image.repository }}, which begins with a registry, and {{ $name }}.registry is {{ $image.registry }}: set {{ $name }}.registry={{ . }} and {{ $name }}.repository={{ trimPrefix (printf "%s/" .) $image.repository }}
{{- end }}
{{- end }}
{{- with .Values.gateway.envoyImage }}
{{- $pulls := ne (dig "imagePullPolicy" "" $.Values.gateway.gatewayClass.parameters) "Never" }}
{{- if and $.Values.gateway.enabled $pulls (or .tag .digest) (ne (include "isthmus.isFullyNamed" (dict "image" . "tag" "")) "true") }}
- gateway.envoyImage names no registry: set gateway.envoyImage.registry, such as docker.io, or gateway.envoyImage.digest
{{- end }}
{{- if and $.Values.gateway.enabled (not (or .tag .digest)) }}
- gateway.envoyImage.tag and gateway.envoyImage.digest are both empty: name one of them
{{- end }}
{{- end }}
{{- $gateway := .Values.gateway }}
{{- $isNamed := false }}
{{- range $gateway.extraArgs }}
{{- $isNamed = or $isNamed (hasPrefix "--controller-name" (toString .)) }}
{{- end }}
{{- if and $gateway.enabled $isNamed }}
- gateway.extraArgs has --controller-name: set gateway.controllerName in its place, of which the GatewayClass and the rights follow (docs/tasks/upgrade.md)
{{- end }}
{{- range $gateway.extraEnv }}
{{- if and $gateway.enabled (eq (toString .name) "CONTROLLER_NAME") }}
- gateway.extraEnv has CONTROLLER_NAME: set gateway.controllerName in its place, of which the GatewayClass and the rights follow (docs/tasks/upgrade.md)
{{- end }}
{{- end }}
{{- if and .Values.gateway.gatewayClass.parameters (not .Values.gateway.gatewayClass.create) }}
- gateway.gatewayClass.parameters belong to the GatewayClass that gateway.gatewayClass.create makes: it is false
{{- end }}
{{- end -}}
