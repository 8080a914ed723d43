// The modules that carry the CRD manifests. A module of its own, because requiring them beside
// the Kubernetes binaries would lift those binaries' dependencies above the ones they were released with.
module isthmus.dev/e2e/tools/crds

go 1.26

require (
	sigs.k8s.io/gateway-api v1.6.3
	sigs.k8s.io/gateway-api-inference-extension v1.6.0
)
