// Package gateway runs the official conformance suite of Gateway API.
package gateway

import (
	"testing"

	"sigs.k8s.io/gateway-api/conformance"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
)

// TestConformance runs the suite with the options that its own flags give; by default for the profile GATEWAY-HTTP, with
// the features that the GatewayClass lists.
func TestConformance(t *testing.T) {
	options := conformance.DefaultOptions(t)
	if len(options.ConformanceProfiles) == 0 {
		options.ConformanceProfiles = []suite.ConformanceProfileName{suite.GatewayHTTPConformanceProfileName}
	}
	conformance.RunConformanceWithOptions(t, options)
}
