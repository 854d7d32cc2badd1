#include "app/cli.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

namespace nano {

namespace {

constexpr size_t kMaxArgument = 4 << 20;
constexpr size_t kHelpColumn = 34, kHelpWidth = 74;

// llama.cpp's letters.
const std::map<std::string, std::string> kLetters = {{"model", "-m"},         {"prompt", "-p"},
                                                     {"max-tokens", "-n"},    {"threads", "-t"},
                                                     {"max-model-len", "-c"}, {"seed", "-s"}};

// Of each command, at the end of its --help. A test runs them.
const char* const kExamples[] = {
    "run tiny \"In the beginning\" --temperature 0 -n 20",
    "run tiny \"In the\" --n 3 --seed 7 --json",
    "run smollm2 -p \"Why is the sky blue?\"",
    "chat smollm2 --system \"You are a poet.\" --temperature 0.7",
    "info tiny --kv-heads 1 --weight-bits 4",
    "info --params 70e9 --device-memory 80GB",
    "tokenize tiny \"In the beginning\"",
    "ppl tiny --file README.md --ctx 128",
    "bench latency tiny --input-len 32 --output-len 16 --num-iters 3",
    "bench throughput tiny --input-len 32 --output-len 16 --num-prompts 20",
    "bench gemm --k 512 --n 512 --m 1,8,64",
    "bench serve tiny --in-process --num-prompts 8 --request-rate 20 --mix 64:16,32:32",
    "bench compare tiny --vary scheduling=static,continuous --runs 3",
    "bench ladder tiny paged-kv=off:on scheduling=static:continuous --runs 3",
    "trace summary steps.jsonl",
};

const char* const kTags =
    "{block manager} and the like name the module that a flag switches or sets: nano/core/block_manager.h,\n"
    "prefix_cache.h, scheduler.h, chunk_planner.h (chunked prefill), sampler.h; nano/quant/linear.h.";

// vLLM takes --max_model_len for --max-model-len, and so do scripts made for it. Values, and what follows --, stay.
Args with_dashes(Args args, const CLI::App& cli) {
  bool is_value = false;
  for (std::string& arg : args) {
    if (std::exchange(is_value, false) || arg.size() < 2 || arg[0] != '-') continue;
    if (arg == "--") break;
    const size_t end = std::min(arg.find('='), arg.size());
    std::string name = arg.substr(0, end);
    if (arg[1] == '-') std::replace(name.begin(), name.end(), '_', '-');
    const CLI::Option* option = cli.get_option_no_throw(name);
    if (option == nullptr) continue;
    arg.replace(0, end, name);
    is_value = end == arg.size() && option->get_items_expected_min() > 0;
  }
  return args;
}

// Broken between words; CLI11 indents what follows a line break.
std::string wrapped(std::string text) {
  for (size_t begin = 0, space; text.size() - begin > kHelpWidth; begin = space + 1) {
    space = text.rfind(' ', begin + kHelpWidth);
    if (space == std::string::npos || space < begin) break;
    text[space] = '\n';
  }
  return text;
}

// CLI11's --help, but with one entry for a flag and its twin, and with texts broken between words.
struct HelpFormatter : CLI::Formatter {
  HelpFormatter() { column_width(kHelpColumn); }
  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    if (is_positional) return option->get_name(true);
    const std::vector<std::string>&names = option->get_lnames(), &letters = option->get_snames();
    return (letters.empty() ? "" : "-" + letters[0] + ", ") + (names.size() > 1 ? "--[no-]" : "--") +
           names.at(0);
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    return wrapped(option->get_description());
  }
};

std::string shown_default(const std::string& value) { return value.empty() ? "" : " [" + value + "]"; }

}  // namespace

ArgParser::ArgParser(std::string command, std::string description)
    : command_("build/nano " + command),
      cli_(std::make_unique<CLI::App>(std::move(description), std::move(command))) {
  cli_->set_help_flag("--help,-h", "this text");
  cli_->formatter(std::make_shared<HelpFormatter>());
  cli_->allow_extras();  // parse() refuses them, in its own words
}

ArgParser::~ArgParser() = default;

void ArgParser::option(const std::string& name, const std::string& value_name, const std::string& help,
                       Setter set) {
  // A callback on raw results: CLI11 cuts "[a,b]" apart for vector fields.
  const CLI::callback_t call = [set = std::move(set)](const CLI::results_t& values) {
    for (const std::string& value : values) set(value);
    return true;
  };
  const auto letter = kLetters.find(name);
  cli_->add_option((letter == kLetters.end() ? "--" : letter->second + ",--") + name, call, help)
      ->group(group_)
      ->type_name(value_name)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
}

void ArgParser::flag(const std::string& name, const std::string& help, std::function<void(bool)> set) {
  auto call = [set = std::move(set)](int64_t count) { set(count > 0); };  // -1 for --no-name
  cli_->add_flag_function("--" + name + ",!--no-" + name, call, help)
      ->group(group_)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast)
      ->disable_flag_override();  // no --no-sampler=3
}

void ArgParser::add(const std::string& name, std::string& field, const std::string& help,
                    const std::string& choices) {
  auto set = [this, name, &field, choices](const std::string& value) {
    if (value.empty()) throw Error("is empty", where(name), "leave the flag out");
    check_choice(value, choices, where(name));
    field = value;
  };
  option(name, choices.empty() ? "TEXT" : choices, help + shown_default(field), set);
}

void ArgParser::add(const std::string& name, int64_t& field, const std::string& help, int64_t low,
                    int64_t high) {
  option(name, "N", help + shown_default(std::to_string(field)), [=, this, &field](const std::string& value) {
    field = parse_human_int(value, where(name));
    if (field < low || field > high)
      throw Error(fmt::format("{} is out of range: from {} to {}", field, low, high), where(name));
  });
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

void ArgParser::positional(const std::string& name, std::string& field, const std::string& help) {
  add_positional({name, &field, nullptr}, help);
}

void ArgParser::positional(const std::string& name, std::optional<std::string>& field,
                           const std::string& help) {
  add_positional({name, nullptr, &field}, help);
}

void ArgParser::add_positional(Positional positional, const std::string& help) {
  const CLI::callback_t take = [this](const CLI::results_t& values) {
    given_.push_back(values.at(0));
    return true;
  };
  cli_->add_option(positional.name, take, help)->type_name("");
  positionals_.push_back(std::move(positional));
}

void ArgParser::fill_positionals() {
  auto next = given_.begin();
  for (const Positional& p : positionals_) {
    if (p.field && !p.field->empty()) continue;                       // --model
    if (p.optional_field && p.optional_field->has_value()) continue;  // --prompt
    if (p.optional_field && next != given_.end()) *p.optional_field = *next++;
    if (p.field && next != given_.end()) *p.field = *next++;
    if (p.field && p.field->empty()) refuse("no " + p.name + " was given");
  }
  if (next != given_.end()) refuse("'" + *next + "' is one argument too many");
}

bool ArgParser::parse(const Args& args) {
  Args extras = args;
  if (!parse_own(extras)) return false;
  for (const std::string& extra : extras)
    if (extra != "--") refuse_extra(extra);
  fill_positionals();
  return true;
}

bool ArgParser::parse_own(Args& args) {
  for (const std::string& arg : args)
    if (arg.size() > kMaxArgument) refuse("an argument is longer than 4 MiB");
  Args reversed = with_dashes(args, *cli_);  // as CLI11 wants them
  std::reverse(reversed.begin(), reversed.end());
  try {
    cli_->parse(std::move(reversed));
  } catch (const CLI::CallForHelp&) {
    std::string help = CLI::detail::find_and_replace(cli_->help("build/nano"), "\n\n\n", "\n\n");
    const char* title = "Examples:\n";
    for (const std::string example : kExamples)
      if (example.rfind(cli_->get_name() + " ", 0) == 0)
        help += std::exchange(title, "") + ("  build/nano " + example + "\n");
    fmt::print("{}{}", help, help.find(" {scheduler}") == help.npos ? "" : fmt::format("\n{}\n", kTags));
    return false;
  } catch (const CLI::ArgumentMismatch& e) {  // "--stop: 1 required TEXT missing", "no-sampler was given …"
    const std::string what = e.what(), flag = what.substr(0, what.find_first_of(": "));
    if (flag.rfind("--", 0) == 0) throw Error("needs a value", command_ + " " + flag);
    throw Error("takes no value", where(flag));
  } catch (const CLI::ParseError& e) {
    refuse(e.what());
  }
  args = cli_->remaining();
  return true;
}

// What nobody declared.
void ArgParser::refuse_extra(const std::string& extra) const {
  if (extra.rfind('-', 0) != 0) refuse("'" + extra + "' is one argument too many");
  std::vector<std::string> names, letters;
  for (const CLI::Option* option : cli_->get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    for (const std::string& letter : option->get_snames()) letters.push_back("-" + letter);
  }
  std::string name = extra.substr(0, extra.find('='));
  std::replace(name.begin(), name.end(), '_', '-');
  const std::string near = closest(name, names);
  const std::string problem = "'" + extra + "' is not one of its flags";
  if (!near.empty()) throw Error(problem, command_, "did you mean " + near + "?");
  if (name.size() == 2)
    throw Error(problem, command_, fmt::format("its letters: {}", fmt::join(letters, " ")));
  refuse(problem);
}

void ArgParser::refuse(const std::string& problem) const {
  throw Error(problem, command_, "see `" + command_ + " --help`");
}

void add_engine_flags(ArgParser& parser, EngineOptions& options) {
  parser.positional("MODEL", options.model,
                    "a .gguf file, a Hugging Face directory, or a name: tiny, tiny-draft, smollm2");
  parser.heading(engine_flags().front().group);
  parser.add("model", options.model, "the same as MODEL");
  for (const Flag& flag : engine_flags()) {
    parser.heading(flag.group);
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

}  // namespace nano
