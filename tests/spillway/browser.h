// SPDX-License-Identifier: Apache-2.0
//
// Opens pages that commands wrote in a real browser, where there is one.

#ifndef SPILLWAY_TESTS_SPILLWAY_BROWSER_H_
#define SPILLWAY_TESTS_SPILLWAY_BROWSER_H_

#include <cstdlib>
#include <sstream>
#include <string>

#include "gtest/gtest.h"
#include "tests/temp_folder.h"

namespace spillway::test {

// The result of opening a page in the browser: the document after the script has run, and the
// console messages.
struct Opened {
  std::string document;
  std::string console;
};

inline bool HasBrowser() { return std::system("command -v chromium >/dev/null 2>&1") == 0; }

// Opens a page in a browser that has no network, so that the page can load nothing.
inline Opened OpenInBrowser(const TempFolder& folder, const std::string& page) {
  const std::string out = folder / "document.html", err = folder / "browser.log";
  const std::string command =
      "timeout 120 chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage "
      "--proxy-server=127.0.0.1:9 --user-data-dir='" +
      (folder / "profile") +
      "' --enable-logging=stderr --window-size=1200,3000 --dump-dom 'file://" + page + "' >'" +
      out + "' 2>'" + err + "'";
  EXPECT_EQ(std::system(command.c_str()), 0) << ReadFile(err);
  const std::string all = ReadFile(out);
  // The scripts are cut off, because they contain every text that the page can show.
  Opened opened{.document = all.substr(0, all.find("<script")), .console = ""};
  std::istringstream lines(ReadFile(err));
  for (std::string line; std::getline(lines, line);) {
    if (line.find("CONSOLE") != std::string::npos) opened.console += line + "\n";
  }
  return opened;
}

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_SPILLWAY_BROWSER_H_
