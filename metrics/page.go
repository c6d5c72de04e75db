package metrics

import (
	"crypto/sha256"
	_ "embed" // for the files of the page
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"strings"
)

// The status page is one document without external resources. The status is
// embedded as JSON, and the script renders it, at first and after each poll of
// /api/status, so that there is one way to show it.
var (
	//go:embed page/index.html
	pageHTML string
	//go:embed page/style.css
	pageStyle string
	//go:embed page/script.js
	pageScript string

	page = newStatusPage(pageHTML, pageStyle, pageScript)
)

// statusPage is the parsed page with the content policy that fits it.
type statusPage struct {
	html   *template.Template
	style  template.CSS
	script template.JS
	policy string
}

func newStatusPage(html, style, script string) statusPage {
	return statusPage{
		html:   template.Must(template.New("index.html").Parse(html)),
		style:  template.CSS(style), //nolint:gosec // our own embedded file
		script: template.JS(script), //nolint:gosec // our own embedded file
		// Only this very style and script run, whatever a view is called.
		policy: strings.Join([]string{
			"default-src 'none'",
			"style-src '" + integrity(style) + "'",
			"script-src '" + integrity(script) + "'",
			"connect-src 'self'",
			"img-src data:",
			"base-uri 'none'",
			"form-action 'none'",
			"frame-ancestors 'none'",
		}, "; "),
	}
}

// render writes the page with a status embedded. The status is encoded here,
// since the template would hide an encoding error in the page; encoding/json
// escapes what could end the element.
func (p statusPage) render(w io.Writer, status Status) error {
	encoded, err := json.Marshal(status)
	if err != nil {
		return fmt.Errorf("encode status: %w", err)
	}
	return p.html.Execute(w, struct {
		Version string
		Style   template.CSS
		Script  template.JS
		Status  template.JS
	}{status.Version, p.style, p.script, template.JS(encoded)}) //nolint:gosec // JSON with <, > and & escaped
}

// integrity is the source expression of a content policy for an inline element.
func integrity(content string) string {
	sum := sha256.Sum256([]byte(content))
	return fmt.Sprintf("sha256-%s", base64.StdEncoding.EncodeToString(sum[:]))
}
