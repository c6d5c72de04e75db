// Package wait reads what was just written: many clients commit, call mvsync.wait, and look for their own row. It also
// watches that an idle daemon holds no log back on the server, whatever others write.
package wait
