/* The JSON of plugins in C, on this machine: cc -I.. json_test.c ../json.c -lm */
#undef NDEBUG
#include "corral_json.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static char failure[512];

void corral_fail(int status, const char *code, const char *format, ...) __attribute__((format(printf, 3, 4)));
void corral_fail(int status, const char *code, const char *format, ...) {
  va_list arguments;
  if (*failure) return;
  va_start(arguments, format);
  int length = snprintf(failure, sizeof failure, "%d %s ", status, code);
  vsnprintf(failure + length, sizeof failure - (size_t)length, format, arguments);
  va_end(arguments);
}

static const corral_json *parsed(const char *text) {
  const char *error;
  size_t position;
  const corral_json *value = corral_parse(text, &error, &position);
  if (!value) printf("%s: %s at %zu\n", text, error, position);
  assert(value);
  return value;
}

static void values_are_read(void) {
  const corral_json *all = parsed(" {\"a\": [1, -2.5e1, true, null], \"b\": \"x\\n\\u00e4\\ud83d\\ude00\", \"c\": {}, \"b\": \"last\"} ");
  assert(all->type == CORRAL_OBJECT && all->length == 4);
  const corral_json *list = corral_member(all, "a"), *first = list->items;
  assert(list->length == 4 && first->number == 1 && first->next->number == -25 && first->next->next->boolean);
  assert(first->next->next->next->type == CORRAL_NULL);
  assert(list->source_length == strlen("[1, -2.5e1, true, null]") && strncmp(list->source, "[1,", 3) == 0);
  assert(strcmp(list->next->string, "x\nä😀") == 0 && strcmp(corral_member(all, "b")->string, "last") == 0);
  assert(!corral_member(all, "d") && corral_member(all, "c")->length == 0);
}

static void other_texts_are_refused(void) {
  static char deep[100], many[2 * 20000 + 2];
  memset(deep, '[', sizeof deep - 1);
  many[0] = '[';
  for (size_t i = 1; i < sizeof many - 2; i += 2) memcpy(many + i, "1,", 2);
  const char *const texts[] = {"",      "{",        "[1,]",   "[1 2]",      "{\"a\"}",  "{a:1}",      "01",    "1.",   "1e",   "-",
                               "tru",   "nulll",    "\"a",    "\"\\x\"",    "\"\\u00\"", "\"\\u0000\"", "\"\n\"", "\"\\ud800\"",
                               "\"\\udc00\\ud800\"", "1 1", "+1", "NaN", deep, many};
  for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
    const char *error;
    size_t position;
    assert(!corral_parse(texts[i], &error, &position) && error && position <= strlen(texts[i]));
  }
}

static void expect(const char *expected) {
  if (strcmp(failure, expected) != 0) printf("%s\nis not\n%s\n", failure, expected);
  assert(strcmp(failure, expected) == 0);
  *failure = 0;
}

static void fields_are_checked(void) {
  const corral_json *body = parsed(
      "{\"text\": \"x\", \"count\": 64, \"heat\": 0.5, \"loud\": true, \"tags\": [\"a\", 5], \"none\": null, \"big\": 1e300, \"inf\": 1e999}");
  assert(strcmp(corral_field_string(body, "text", CORRAL_REQUIRED), "x") == 0);
  assert(corral_field_integer(body, "count", 1, 0, 64) == 64 && corral_field_integer(body, "none", 7, 0, 9) == 7);
  assert(corral_field_number(body, "heat", 1, 0, 1) == 0.5 && corral_field_boolean(body, "loud", false));
  assert(!corral_field_string(body, "left_out", NULL) && !corral_field_boolean(body, "none", false));
  expect("");
  corral_field_string(body, "other_one", CORRAL_REQUIRED);
  expect("400 invalid-other-one `other_one` is missing; expected a string");
  corral_field_string(body, "none", CORRAL_REQUIRED);
  expect("400 invalid-none `none` is null; expected a string");
  corral_field_string(body, "count", NULL);
  expect("400 invalid-count `count` is 64; expected a string");
  corral_field_integer(body, "count", 1, 1, 63);
  expect("400 invalid-count `count` is 64; expected an integer from 1 to 63");
  corral_field_integer(body, "heat", 1, 0, 63);
  expect("400 invalid-heat `heat` is 0.5; expected an integer from 0 to 63");
  corral_field_integer(body, "big", 1, 0, INT64_MAX);
  expect("400 invalid-big `big` is 1e300; expected an integer from 0 to 9223372036854775807");
  corral_field_number(body, "inf", 1, 0, 1e308);
  expect("400 invalid-inf `inf` is 1e999; expected a number from 0 to 1e+308");
  corral_field_boolean(body, "count", false);
  expect("400 invalid-count `count` is 64; expected true or false");
  assert(corral_field_array(body, "tags", CORRAL_STRING, 1, 9)->length == 0);
  expect("400 invalid-tags `tags[1]` is 5; expected a string");
  corral_field_array(body, "tags", CORRAL_STRING, 3, 9);
  expect("400 invalid-tags `tags` is an array of 2 items; expected an array of 3 to 9 items");
  assert(corral_field_value(body, "none")->type == CORRAL_NULL);
  corral_field_names(body, (const char *const[]){"text", "count", NULL});
  expect("400 invalid-body there is no field \"heat\"; expected text, count");
}

static void text_is_written(void) {
  corral_text text = {0};
  for (int i = 0; i < 100; i++) {
    corral_print(&text, "%d,", i);
    corral_print_string(&text, "\"ä\\\n", 5);
  }
  const char *end = "99,\"\\\"ä\\\\\\u000a\"";
  assert(strcmp(text.data + text.length - strlen(end), end) == 0 && strlen(text.data) == text.length);
}

static void utf8_is_checked(void) {
  const char *const good[] = {"", "a", "ä€😀"};
  const char *const bad[] = {"\x80", "\xc3", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xf4\x90\x80\x80", "\xe2\x82"};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert(corral_is_utf8(good[i], strlen(good[i])));
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert(!corral_is_utf8(bad[i], strlen(bad[i])));
}

int main(void) {
  values_are_read();
  other_texts_are_refused();
  fields_are_checked();
  text_is_written();
  utf8_is_checked();
  puts("5 tests passed");
  return 0;
}
