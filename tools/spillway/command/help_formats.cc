// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/command/help_formats.h"

#include <string_view>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace spillway::command {
namespace {

std::vector<const CLI::App*> SubcommandsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// Returns the command's name with those above it: "spillway bench io".
std::string FullName(const CLI::App& app) {
  return app.get_parent() == nullptr
             ? app.get_name()
             : absl::StrCat(FullName(*app.get_parent()), " ", app.get_name());
}

std::vector<std::string> FlagsOf(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::Option* const option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
  }
  return flags;
}

// Returns the words that an option accepts if its type lists them, as "fp32|fp16-amp" does. Empty
// for other types, such as a file or a number.
std::vector<std::string> ChoicesOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const bool is_choice = type.find('|') != std::string::npos && type.find('[') == std::string::npos;
  return is_choice ? std::vector<std::string>(absl::StrSplit(type, '|'))
                   : std::vector<std::string>();
}

// Returns the command that all others are below.
const CLI::App& RootOf(const CLI::App& app) {
  return app.get_parent() == nullptr ? app : RootOf(*app.get_parent());
}

// Returns the words, other than flags, that can follow a command's name. Sets *any_file if a file
// can follow, too.
std::vector<std::string> ArgumentsOf(const CLI::App& app, bool* any_file) {
  if (FullName(app) == "spillway man") return ManPageNames(RootOf(app));
  std::vector<std::string> words;
  for (const CLI::App* const sub : SubcommandsOf(app)) words.push_back(sub->get_name());
  for (const CLI::Option* const option : app.get_options()) {
    if (!option->get_positional()) continue;
    const std::vector<std::string> choices = ChoicesOf(*option);
    words.insert(words.end(), choices.begin(), choices.end());
    *any_file = *any_file || choices.empty();
  }
  return words;
}

// Appends a branch of the script for the command and for each command below it.
void AppendBranches(const CLI::App& app, std::string* script) {
  absl::StrAppendFormat(script, "    '%s')\n      case $previous in\n", FullName(app));
  for (const CLI::Option* const option : app.get_options()) {
    if (option->get_lnames().empty() || option->get_expected_max() == 0) continue;
    const std::vector<std::string> choices = ChoicesOf(*option);
    const std::string values =
        choices.empty() ? "_spillway_files"
                        : absl::StrFormat("_spillway_words '%s'", absl::StrJoin(choices, " "));
    absl::StrAppendFormat(script, "        --%s) %s; return ;;\n", option->get_lnames().front(),
                          values);
  }
  bool any_file = false;
  const std::vector<std::string> arguments = ArgumentsOf(app, &any_file);
  absl::StrAppendFormat(script,
                        "      esac\n"
                        "      flags='%s' arguments='%s' files='%s' ;;\n",
                        absl::StrJoin(FlagsOf(app), " "), absl::StrJoin(arguments, " "),
                        any_file ? "yes" : "");
  for (const CLI::App* const sub : SubcommandsOf(app)) AppendBranches(*sub, script);
}

// Appends the cases that descend to the commands below `app`: after 'spillway bench', the word io
// makes the current command 'spillway bench io'.
void AppendDescent(const CLI::App& app, std::string* script) {
  for (const CLI::App* const sub : SubcommandsOf(app)) {
    absl::StrAppendFormat(script, "      '%s %s') command='%s' ;;\n", FullName(app),
                          sub->get_name(), FullName(*sub));
    AppendDescent(*sub, script);
  }
}

// Escapes text for man, so that no line of it begins with a request and a dash stays a dash.
std::string Man(std::string_view text) {
  std::string man = absl::StrReplaceAll(absl::string_view(text.data(), text.size()),
                                        {{"\\", "\\e"}, {"-", "\\-"}});
  man = absl::StrReplaceAll(man, {{"\n.", "\n\\&."}, {"\n'", "\n\\&'"}});
  if (man.starts_with('.') || man.starts_with('\'')) man.insert(0, "\\&");
  return man;
}

// Appends the options of a group to a manual page.
void AppendOptions(const CLI::App& app, const std::string& group, std::string* page) {
  for (const CLI::Option* const option : app.get_options()) {
    if (option->get_group() != group) continue;
    absl::StrAppendFormat(page, ".TP\n.B %s", Man(option->get_name(false, true)));
    if (option->get_expected_max() > 0) {
      absl::StrAppendFormat(page, " %s", Man(option->get_type_name()));
    }
    absl::StrAppendFormat(page, "\n%s", Man(option->get_description()));
    if (!option->get_default_str().empty()) {
      absl::StrAppendFormat(page, " (default: %s)", Man(option->get_default_str()));
    }
    *page += '\n';
  }
}

}  // namespace

std::string BashCompletion(const CLI::App& app) {
  std::string descent;
  AppendDescent(app, &descent);
  std::string branches;
  AppendBranches(app, &branches);
  return absl::StrFormat(
      "# For bash: source <(spillway completion bash)\n"
      // "--save=fi" is one word or three: bash splits words at "=" unless COMP_WORDBREAKS says
      // otherwise, zsh does not. If it is one word, a completion has to repeat the flag: $prefix.
      "_spillway_words() {\n"
      "  [[ -z $prefix ]] || compopt +o filenames 2>/dev/null\n"
      "  COMPREPLY=($(compgen -P \"$prefix\" -W \"$1\" -- \"$current\"))\n"
      "}\n"
      "_spillway_files() {\n"
      "  local IFS=$'\\n'\n"  // a name may have spaces
      "  if [[ -z $prefix ]]; then\n"
      "    COMPREPLY+=($(compgen -f -- \"$current\"))\n"
      "  else\n"  // in zsh, -f would look for the whole word
      "    COMPREPLY+=($(compgen -P \"$prefix\" -G \"$current*\"))\n"
      "  fi\n"
      "}\n"
      "_spillway() {\n"
      "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
      "  local command=spillway prefix='' flags='' arguments='' files='' i\n"
      "  if [[ $current == --*=* ]]; then\n"
      "    previous=${current%%%%=*} prefix=${current%%%%=*}= current=${current#*=}\n"
      "  elif [[ $current == '=' && $previous == --* ]]; then\n"
      "    current=''\n"
      "  elif [[ $previous == '=' ]] && ((COMP_CWORD > 1)); then\n"
      "    previous=${COMP_WORDS[COMP_CWORD-2]}\n"
      "  fi\n"
      "  for ((i = 1; i < COMP_CWORD; i++)); do\n"
      "    case \"$command ${COMP_WORDS[i]}\" in\n"
      "%s"
      "    esac\n"
      "  done\n"
      "  COMPREPLY=()\n"
      "  case $command in\n"
      "%s"
      "  esac\n"
      "  [[ -z $prefix ]] || return\n"
      "  if [[ $current == -* || ( -z $arguments && -z $files ) ]]; then\n"
      "    _spillway_words \"$flags\"\n"
      "  else\n"
      "    _spillway_words \"$arguments\"\n"
      "    [[ -z $files ]] || _spillway_files\n"
      "  fi\n"
      "}\n"
      "complete -o filenames -F _spillway spillway\n",
      descent, branches);
}

std::string ZshCompletion(const CLI::App& app) {
  return absl::StrCat(
      "#compdef spillway\n"
      "# For zsh: source <(spillway completion zsh), or as _spillway in a folder of $fpath.\n"
      "autoload -Uz compinit bashcompinit\n"
      "(( $+functions[compdef] )) || compinit\n"
      "bashcompinit\n",
      BashCompletion(app),
      // From $fpath, zsh reads the script when it completes the first word, so the script has to
      // complete that word itself.
      "[[ ${funcstack[1]} != _spillway ]] || _bash_complete -o filenames -F _spillway\n");
}

std::vector<std::string> ManPageNames(const CLI::App& app) {
  std::vector<std::string> names = {absl::StrReplaceAll(FullName(app), {{" ", "-"}})};
  for (const CLI::App* const sub : SubcommandsOf(app)) {
    for (std::string& name : ManPageNames(*sub)) names.push_back(std::move(name));
  }
  return names;
}

std::string ManPage(const CLI::App& app, const std::string& version) {
  const std::string name = absl::StrReplaceAll(FullName(app), {{" ", "-"}});
  const std::string description = app.get_description();
  const size_t first_end = description.find('\n');
  std::string page = absl::StrFormat(
      ".TH %s 1 \"\" \"Spillway %s\"\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.B %s\n", Man(name),
      Man(version), Man(name), Man(description.substr(0, first_end)), Man(FullName(app)));
  const std::vector<const CLI::App*> subs = SubcommandsOf(app);
  absl::StrAppend(&page, subs.empty() ? "[OPTIONS]" : "COMMAND [OPTIONS]");
  for (const CLI::Option* const option : app.get_options()) {
    if (option->get_positional()) absl::StrAppend(&page, " ", Man(option->get_name(true)));
  }
  absl::StrAppend(&page, "\n.SH DESCRIPTION\n.nf\n", Man(description), "\n.fi\n");
  if (!subs.empty()) {
    absl::StrAppend(&page, ".SH COMMANDS\n");
    for (const CLI::App* const sub : subs) {
      const std::string about = sub->get_description();
      absl::StrAppendFormat(&page, ".TP\n.B %s\n%s\n", Man(sub->get_name()),
                            Man(about.substr(0, about.find('\n'))));
    }
  }
  absl::StrAppend(&page, ".SH OPTIONS\n");
  const std::vector<std::string> groups = app.get_groups();
  for (const std::string& group : groups) {
    if (groups.size() > 1) absl::StrAppendFormat(&page, ".SS %s\n", Man(group));
    AppendOptions(app, group, &page);
  }
  return page;
}

}  // namespace spillway::command
