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
{{- with .Values.gateway.envoyImage }}
{{- if and $.Values.gateway.enabled (not (or .tag .digest)) }}
- gateway.envoyImage.tag and gateway.envoyImage.digest are both empty: name one of them
{{- end }}
{{- end }}
{{- if and .Values.gateway.gatewayClass.parameters (not .Values.gateway.gatewayClass.create) }}
- gateway.gatewayClass.parameters belong to the GatewayClass that gateway.gatewayClass.create makes: it is false
{{- end }}
{{- end -}}
