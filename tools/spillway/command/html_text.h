// SPDX-License-Identifier: Apache-2.0
//
// Text inside the pages that commands write.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_HTML_TEXT_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_HTML_TEXT_H_

#include <string>
#include <string_view>

#include "absl/strings/str_replace.h"
#include "src/base/view.h"

namespace spillway::command {

// Returns the text as HTML shows it, in an element or in a quoted attribute.
inline std::string EscapeHtml(std::string_view text) {
  return absl::StrReplaceAll(
      base::View(text),
      {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_HTML_TEXT_H_
