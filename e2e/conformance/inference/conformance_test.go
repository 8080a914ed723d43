// Package inference runs the official conformance suite of the Gateway API Inference Extension.
package inference

import (
	"sync/atomic"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/gateway-api-inference-extension/conformance"
	"sigs.k8s.io/gateway-api-inference-extension/version"
	"sigs.k8s.io/gateway-api/conformance/utils/suite"
)

// The CRD that the report's version is of.
const poolDefinition = "inferencepools.inference.networking.k8s.io"

// TestConformance runs the suite with the options that its own flags give.
//
// The suite requests its report while its tests still count as running, which the conformance module of Gateway API
// v1.6.3 refuses. The report is therefore written here, after the last test has ended.
func TestConformance(t *testing.T) {
	options := conformance.DefaultOptions(t)
	output := options.ReportOutputPath
	options.ReportOutputPath = ""
	var ran atomic.Pointer[suite.ConformanceTestSuite]
	options.Hook = func(_ *testing.T, _ suite.ConformanceTest, current *suite.ConformanceTestSuite) {
		ran.Store(current)
	}
	t.Run("Suite", func(t *testing.T) { conformance.RunConformanceWithOptions(t, options) })
	if finished := ran.Load(); output != "" && finished != nil {
		writeReport(t, options, finished, output)
	}
}

func writeReport(t *testing.T, options suite.ConformanceOptions, finished *suite.ConformanceTestSuite, output string) {
	var definition apiextensions.CustomResourceDefinition
	if err := options.Client.Get(t.Context(), client.ObjectKey{Name: poolDefinition}, &definition); err != nil {
		t.Fatalf("reading CRD %s: %v", poolDefinition, err)
	}
	results, err := finished.Report()
	if err != nil {
		t.Fatalf("making the report: %v", err)
	}
	report := conformance.GatewayAPIInferenceExtensionConformanceReport{
		GatewayAPIInferenceExtensionVersion: definition.Annotations[version.BundleVersionAnnotation],
		ConformanceReport:                   *results,
	}
	if err := report.WriteReport(t.Logf, output); err != nil {
		t.Fatal(err)
	}
}
