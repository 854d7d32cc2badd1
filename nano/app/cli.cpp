#include "app/cli.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "base/error.h"  // Error

namespace nano {

struct ArgParser::Cli {
  CLI::App app;
};

namespace {

constexpr size_t kMaxArgument = 4 << 20;
constexpr size_t kHelpColumn = 34, kHelpWidth = 74;

// vLLM takes --max_model_len for --max-model-len, and so do scripts made for it.
std::string with_dashes(std::string arg) {
  if (arg.rfind("--", 0) != 0) return arg;
  std::replace(arg.begin(), arg.begin() + std::ptrdiff_t(std::min(arg.find('='), arg.size())), '_', '-');
  return arg;
}

// Broken between words, so that it fills the right column of --help.
std::string wrapped(const std::string& text) {
  std::string out;
  size_t width = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(' ', begin), text.size());
    if (width > 0 && width + 1 + (end - begin) > kHelpWidth) {
      out += "\n" + std::string(kHelpColumn, ' ');
      width = 0;
    }
    out += (width > 0 ? " " : "") + text.substr(begin, end - begin);
    width += (width > 0) + end - begin;
    begin = end + 1;
  }
  return out;
}

std::string shown_default(const std::string& value) { return value.empty() ? "" : " [" + value + "]"; }

}  // namespace

ArgParser::ArgParser(std::string command, std::string description)
    : command_(std::move(command)), description_(std::move(description)), cli_(std::make_unique<Cli>()) {
  cli_->app.set_help_flag("--help,-h");
}

ArgParser::~ArgParser() = default;

void ArgParser::option(const std::string& name, const std::string& value_name, const std::string& help,
                       Setter set) {
  // A callback on raw results: CLI11 cuts "[a,b]" apart for vector fields.
  const CLI::callback_t call = [set = std::move(set)](const CLI::results_t& values) {
    for (const std::string& value : values) set(value);
    return true;
  };
  entries_.push_back({group_, "--" + name + " " + value_name, help});
  cli_->app.add_option("--" + name, call)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void ArgParser::flag(const std::string& name, const std::string& help, std::function<void(bool)> set) {
  auto call = [set = std::move(set)](int64_t count) { set(count > 0); };  // -1 for --no-name
  entries_.push_back({group_, "--[no-]" + name, help});
  cli_->app.add_flag_function("--" + name + ",!--no-" + name, call)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->disable_flag_override();  // no --no-sampler=3
}

void ArgParser::add(const std::string& name, std::string& field, const std::string& help,
                    const std::string& choices) {
  auto set = [this, name, &field, choices](const std::string& value) {
    if (value.empty()) throw Error("is empty", where(name), "leave the flag out");
    if (!choices.empty() && ("|" + choices + "|").find("|" + value + "|") == std::string::npos)
      throw Error("'" + value + "' is not known", where(name), "one of " + choices);
    field = value;
  };
  option(name, choices.empty() ? "TEXT" : choices, help + shown_default(field), set);
}

void ArgParser::add(const std::string& name, int64_t& field, const std::string& help) {
  option(name, "N", help + shown_default(std::to_string(field)),
         [this, name, &field](const std::string& value) { field = parse_human_int(value, where(name)); });
}

void ArgParser::add(const std::string& name, std::optional<int64_t>& field, const std::string& help) {
  option(name, "N", help + shown_default(field ? std::to_string(*field) : ""),
         [this, name, &field](const std::string& value) { field = parse_human_int(value, where(name)); });
}

void ArgParser::add(const std::string& name, double& field, const std::string& help) {
  option(name, "X", help + shown_default(fmt::format("{}", field)),
         [this, name, &field](const std::string& value) { field = parse_real(value, where(name)); });
}

void ArgParser::add(const std::string& name, bool& field, const std::string& help) {
  flag(name, help + shown_default(field ? "on" : "off"), [&field](bool on) { field = on; });
}

void ArgParser::positional(const std::string& name, const std::string& help) {
  const CLI::callback_t take = [this](const CLI::results_t& values) {
    positionals_.push_back(values.at(0));
    return true;
  };
  entries_.push_back({"Arguments", name, help});
  cli_->app.add_option(name, take);
}

bool ArgParser::parse(const Args& args) {
  Args reversed;  // as CLI11 wants them
  for (auto it = args.rbegin(); it != args.rend(); ++it) {
    if (it->size() > kMaxArgument) refuse("an argument is longer than 4 MiB");
    reversed.push_back(with_dashes(*it));
  }
  try {
    cli_->app.parse(std::move(reversed));
    return true;
  } catch (const CLI::CallForHelp&) {
    print_help();
    return false;
  } catch (const CLI::ParseError& e) {
    refuse(e.what());
  }
}

void ArgParser::print_help() const {
  std::string usage, group;
  for (const Entry& entry : entries_)
    if (entry.group == "Arguments") usage += " [" + entry.name + "]";
  fmt::print("usage: build/nano {}{} [flags]\n\n{}\n", command_, usage, description_);
  std::vector<Entry> sorted = entries_;  // by group, in order of first appearance
  auto first_of = [&](const Entry& entry) {
    return std::find_if(entries_.begin(), entries_.end(),
                        [&](const Entry& e) { return e.group == entry.group; });
  };
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const Entry& a, const Entry& b) { return first_of(a) < first_of(b); });
  for (const Entry& entry : sorted) {
    if (entry.group != group) fmt::print("\n{}\n", group = entry.group);
    const bool fits = entry.name.size() < kHelpColumn - 3;
    fmt::print("  {}{:{}}{}\n", entry.name, fits ? "" : "\n",
               fits ? kHelpColumn - 2 - entry.name.size() : kHelpColumn + 1, wrapped(entry.help));
  }
}

void ArgParser::refuse(const std::string& problem) const {
  throw Error(problem, "nano " + command_, "see `build/nano " + command_ + " --help`");
}

std::optional<std::string> ArgParser::next_positional() {
  if (next_positional_ == positionals_.size()) return std::nullopt;
  return positionals_[next_positional_++];
}

void add_engine_flags(ArgParser& parser, EngineOptions& options) {
  parser.positional("MODEL", "a .gguf file, a Hugging Face directory, or a name: tiny, smollm2");
  const char* group = "";
  for (const Flag& flag : engine_flags()) {
    parser.heading(flag.group);
    if (group != flag.group && std::string(group).empty()) {
      parser.add("model", options.model, "the same as MODEL");
      group = flag.group;
    }
    std::string help = flag.help;
    if (*flag.lesson) help += std::string(" {") + flag.lesson + "}";
    std::visit(
        [&](auto field) {
          if constexpr (std::is_same_v<decltype(field), std::string EngineOptions::*>)
            parser.add(flag.name, options.*field, help, flag.choices);
          else
            parser.add(flag.name, options.*field, help);
        },
        flag.field);
  }
}

void take_model(ArgParser& parser, EngineOptions& options) {
  if (!options.model.empty()) return;
  std::optional<std::string> model = parser.next_positional();
  if (!model || model->empty()) parser.refuse("no MODEL was given");
  options.model = *model;
}

void no_more_positionals(ArgParser& parser) {
  if (auto extra = parser.next_positional()) parser.refuse("'" + *extra + "' is one argument too many");
}

double parse_real(const std::string& text, const std::string& where) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (text.empty() || end != text.c_str() + text.size() || !std::isfinite(value))
    throw Error("'" + text + "' is not a number", where);
  return value;
}

std::vector<int32_t> parse_id_list(const std::string& text, const std::string& where) {
  std::vector<int32_t> ids;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t comma = std::min(text.find(',', begin), text.size());
    const int64_t id = parse_human_int(text.substr(begin, comma - begin), where);
    if (id < 0 || id > INT32_MAX) throw Error(fmt::format("token id {} is out of range", id), where);
    ids.push_back(int32_t(id));
    begin = comma + 1;
  }
  return ids;
}

}  // namespace nano
