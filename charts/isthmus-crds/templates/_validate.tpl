{{/* Fails where the cluster has the CRD of a newer bundle. Parameters: root, crd (what is to be put there). */}}
{{- define "isthmus-crds.validate" -}}
{{- $name := .crd.metadata.name -}}
{{- $key := ternary "isthmus.dev/bundle-version" "inference.networking.k8s.io/bundle-version" (hasSuffix ".isthmus.dev" $name) -}}
{{- /* without a cluster, as in helm template, nothing is found */}}
{{- $live := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $name -}}
{{- $theirs := dig "metadata" "annotations" $key "" ($live | default dict) -}}
{{- $ours := get .crd.metadata.annotations $key -}}
{{- if and $theirs (not .root.Values.overwriteNewer) -}}
{{- /* a version that cannot be compared is one of a development branch, which may have more than ours */}}
{{- $version := "^v?[0-9]+\\.[0-9]+\\.[0-9]+(-[0-9A-Za-z.-]+)?$" -}}
{{- if not (regexMatch $version $theirs) -}}
{{- fail (printf "the cluster has %s of bundle version %s, which may be newer than %s: keep it, or set overwriteNewer=true" $name $theirs $ours) -}}
{{- else if gt ((semver $theirs).Compare (semver $ours)) 0 -}}
{{- fail (printf "the cluster has %s of bundle version %s, which is newer than %s: keep it, or set overwriteNewer=true" $name $theirs $ours) -}}
{{- end -}}
{{- end -}}
{{- end -}}
