/* JSON: parser, field readers and writer. Knows nothing of the host. */
#include "corral_json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* In errors.c; a test has its own. */
void corral_fail(int status, const char *code, const char *format, ...) __attribute__((format(printf, 3, 4)));

#define MAX_DEPTH 64
/* Bounds the memory of a request: 1.2 MiB. */
#define MAX_VALUES 16384
/* Bytes of a wrong value that an error shows. */
#define SHOWN 40

const char CORRAL_REQUIRED[] = "";
static const corral_json NOTHING = {.string = "", .source = ""};

void *corral_allocate(size_t size) {
  void *memory = calloc(1, size ? size : 1);
  if (!memory) {
    fprintf(stderr, "the plugin has no memory for %zu bytes\n", size);
    abort();
  }
  return memory;
}

/* Parser. */

typedef struct {
  const char *at, *error;
  size_t values;
} parser;

static corral_json *parse_value(parser *parser, int depth);

static void skip_space(parser *parser) { parser->at += strspn(parser->at, " \t\r\n"); }

static bool fails(parser *parser, const char *error) {
  if (!parser->error) parser->error = error;
  return false;
}

/* Reads four hexadecimal digits; -1 without them. */
static int32_t hex(const char *at) {
  int32_t value = 0;
  for (int i = 0; i < 4; i++) {
    const char *digits = "0123456789abcdef", *found = at[i] ? strchr(digits, at[i] | (at[i] >= 'A' ? 0x20 : 0)) : NULL;
    if (!found) return -1;
    value = value * 16 + (int32_t)(found - digits);
  }
  return value;
}

static char *put_utf8(char *to, uint32_t c) {
  if (c < 0x80) {
    *to++ = (char)c;
    return to;
  }
  int more = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
  static const uint8_t FIRST[] = {0, 0xc0, 0xe0, 0xf0};
  *to++ = (char)(FIRST[more] | c >> 6 * more);
  while (more--) *to++ = (char)(0x80 | (c >> 6 * more & 0x3f));
  return to;
}

/* Reads an escape after its backslash. */
static bool parse_escape(parser *parser, char **to) {
  static const char NAMES[] = "\"\\/bfnrt", VALUES[] = "\"\\/\b\f\n\r\t";
  char name = *parser->at;
  const char *found = name ? strchr(NAMES, name) : NULL;
  if (found) {
    *(*to)++ = VALUES[found - NAMES];
    parser->at++;
    return true;
  }
  int32_t code = name == 'u' ? hex(parser->at + 1) : -1;
  if (code < 0) return fails(parser, "an unknown escape");
  if (code == 0) return fails(parser, "a NUL character");
  parser->at += 5;
  if (code >= 0xd800 && code < 0xe000) {
    int32_t low = code < 0xdc00 && parser->at[0] == '\\' && parser->at[1] == 'u' ? hex(parser->at + 2) : -1;
    if (low < 0xdc00 || low > 0xdfff) return fails(parser, "half of a surrogate pair");
    parser->at += 6;
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  }
  *to = put_utf8(*to, (uint32_t)code);
  return true;
}

static const char *parse_string(parser *parser) {
  if (*parser->at != '"') return fails(parser, "no string where one was expected"), NULL;
  const char *start = ++parser->at, *end = start;
  while (*end && *end != '"') end += *end == '\\' && end[1] ? 2 : 1;
  /* No escape is shorter than what it stands for. */
  char *string = corral_allocate((size_t)(end - start) + 1), *to = string;
  while (*parser->at != '"') {
    if ((uint8_t)*parser->at < 0x20) return fails(parser, *parser->at ? "a control character in a string" : "a string without end"), NULL;
    if (*parser->at != '\\') {
      *to++ = *parser->at++;
      continue;
    }
    parser->at++;
    if (!parse_escape(parser, &to)) return NULL;
  }
  parser->at++;
  return string;
}

static bool parse_number(parser *parser, corral_json *value) {
  const char *at = parser->at, *digits = "0123456789";
  at += *at == '-';
  size_t whole = strspn(at, digits);
  if (!whole || (whole > 1 && *at == '0')) return fails(parser, "no value where one was expected");
  at += whole;
  if (*at == '.') {
    size_t fraction = strspn(++at, digits);
    if (!fraction) return fails(parser, "a number without digits after its point");
    at += fraction;
  }
  if (*at == 'e' || *at == 'E') {
    at++;
    at += *at == '+' || *at == '-';
    size_t exponent = strspn(at, digits);
    if (!exponent) return fails(parser, "a number without digits in its exponent");
    at += exponent;
  }
  value->type = CORRAL_NUMBER;
  value->number = strtod(parser->at, NULL);
  parser->at = at;
  return true;
}

/* Reads the items of an array or object. */
static bool parse_items(parser *parser, corral_json *value, char end, int depth) {
  const corral_json **last = &value->items;
  value->type = end == ']' ? CORRAL_ARRAY : CORRAL_OBJECT;
  parser->at++;
  skip_space(parser);
  if (depth == MAX_DEPTH) return fails(parser, "too many arrays or objects inside each other");
  if (*parser->at == end) return parser->at++, true;
  for (;;) {
    const char *name = NULL;
    if (end == '}') {
      skip_space(parser);
      if (!(name = parse_string(parser))) return false;
      skip_space(parser);
      if (*parser->at++ != ':') return parser->at--, fails(parser, "a member without a colon");
    }
    corral_json *item = parse_value(parser, depth + 1);
    if (!item) return false;
    item->name = name;
    *last = item;
    last = &item->next;
    value->length++;
    skip_space(parser);
    if (*parser->at == end) return parser->at++, true;
    if (*parser->at != ',') return fails(parser, "neither a comma nor the end of the list");
    parser->at++;
  }
}

static bool parse_word(parser *parser, const char *word) {
  if (strncmp(parser->at, word, strlen(word)) != 0) return false;
  parser->at += strlen(word);
  return true;
}

static corral_json *parse_value(parser *parser, int depth) {
  skip_space(parser);
  if (parser->values++ == MAX_VALUES) return fails(parser, "too many values"), NULL;
  corral_json *value = corral_allocate(sizeof *value);
  value->source = parser->at;
  bool good = true;
  if (*parser->at == '"') {
    value->type = CORRAL_STRING;
    good = (value->string = parse_string(parser)) != NULL;
  } else if (*parser->at == '[' || *parser->at == '{') {
    good = parse_items(parser, value, *parser->at == '[' ? ']' : '}', depth);
  } else if (parse_word(parser, "true") || parse_word(parser, "false")) {
    value->type = CORRAL_BOOLEAN;
    value->boolean = *value->source == 't';
  } else if (!parse_word(parser, "null")) {
    good = parse_number(parser, value);
  }
  value->source_length = (size_t)(parser->at - value->source);
  return good ? value : NULL;
}

const corral_json *corral_parse(const char *text, const char **error, size_t *position) {
  parser parser = {.at = text};
  corral_json *value = parse_value(&parser, 0);
  skip_space(&parser);
  if (value && *parser.at) {
    fails(&parser, "text after the value");
    value = NULL;
  }
  *error = parser.error;
  *position = (size_t)(parser.at - text);
  return value;
}

const corral_json *corral_member(const corral_json *object, const char *name) {
  const corral_json *found = NULL;
  /* Of several with one name the last. */
  for (const corral_json *item = object->items; item; item = item->next)
    if (item->name && strcmp(item->name, name) == 0) found = item;
  return found;
}

/* Fields. */

static void wrong(const char *name, const corral_json *value, const char *expected) {
  char code[80] = "invalid-";
  strncat(code, name, sizeof code - strlen(code) - 1);
  code[strcspn(code, "[")] = 0;
  for (char *at = code; *at; at++)
    if (*at == '_') *at = '-';
  if (!value) {
    corral_fail(400, code, "`%s` is missing; expected %s", name, expected);
  } else if (value->type == CORRAL_ARRAY) {
    corral_fail(400, code, "`%s` is an array of %zu items; expected %s", name, value->length, expected);
  } else {
    size_t length = value->source_length;
    if (length > SHOWN) /* Not inside a character. */
      for (length = SHOWN; ((uint8_t)value->source[length] & 0xc0) == 0x80;) length--;
    const char *more = length < value->source_length ? "…" : "";
    corral_fail(400, code, "`%s` is %.*s%s; expected %s", name, (int)length, value->source, more, expected);
  }
}

/* The member, unless it is left out or null. */
static const corral_json *given(const corral_json *object, const char *name) {
  const corral_json *value = corral_member(object, name);
  return value && value->type != CORRAL_NULL ? value : NULL;
}

const char *corral_field_string(const corral_json *object, const char *name, const char *initial) {
  const corral_json *value = initial == CORRAL_REQUIRED ? corral_member(object, name) : given(object, name);
  if (!value && initial != CORRAL_REQUIRED) return initial;
  if (value && value->type == CORRAL_STRING) return value->string;
  wrong(name, value, "a string");
  return "";
}

int64_t corral_field_integer(const corral_json *object, const char *name, int64_t initial, int64_t least, int64_t most) {
  const corral_json *value = given(object, name);
  if (!value) return initial;
  /* Larger ones have no exact form. */
  bool whole = value->type == CORRAL_NUMBER && value->number == floor(value->number) && fabs(value->number) <= 9007199254740992.0;
  if (whole && (int64_t)value->number >= least && (int64_t)value->number <= most) return (int64_t)value->number;
  char expected[80];
  snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)least, (long long)most);
  wrong(name, value, expected);
  return initial;
}

double corral_field_number(const corral_json *object, const char *name, double initial, double least, double most) {
  const corral_json *value = given(object, name);
  if (!value) return initial;
  if (value->type == CORRAL_NUMBER && isfinite(value->number) && value->number >= least && value->number <= most) return value->number;
  char expected[80];
  snprintf(expected, sizeof expected, "a number from %g to %g", least, most);
  wrong(name, value, expected);
  return initial;
}

bool corral_field_boolean(const corral_json *object, const char *name, bool initial) {
  const corral_json *value = given(object, name);
  if (!value) return initial;
  if (value->type == CORRAL_BOOLEAN) return value->boolean;
  wrong(name, value, "true or false");
  return initial;
}

const corral_json *corral_field_array(const corral_json *object, const char *name, corral_json_type items, size_t least, size_t most) {
  static const char *const TYPES[] = {"null", "true or false", "a number", "a string", "an array", "an object"};
  const corral_json *value = corral_member(object, name);
  if (!value || value->type != CORRAL_ARRAY || value->length < least || value->length > most) {
    char expected[80];
    snprintf(expected, sizeof expected, "an array of %zu to %zu items", least, most);
    wrong(name, value, expected);
    return &NOTHING;
  }
  size_t index = 0;
  for (const corral_json *item = value->items; item; item = item->next, index++) {
    if (item->type == items) continue;
    char indexed[80];
    snprintf(indexed, sizeof indexed, "%.40s[%zu]", name, index);
    wrong(indexed, item, TYPES[items]);
    return &NOTHING;
  }
  return value;
}

const corral_json *corral_field_value(const corral_json *object, const char *name) {
  const corral_json *value = corral_member(object, name);
  if (value) return value;
  wrong(name, NULL, "a value");
  return &NOTHING;
}

void corral_field_names(const corral_json *object, const char *const *names) {
  for (const corral_json *item = object->items; item; item = item->next) {
    const char *const *name = names;
    while (*name && strcmp(*name, item->name) != 0) name++;
    if (*name) continue;
    corral_text known = {0};
    for (name = names; *name; name++) corral_print(&known, "%s%s", name == names ? "" : ", ", *name);
    corral_fail(400, "invalid-body", "there is no field \"%.40s\"; expected %s", item->name, known.data);
    return;
  }
}

/* Writer. */

static char *grown(corral_text *text, size_t more) {
  if (text->capacity - text->length <= more) {
    text->capacity = (text->length + more + 1) * 2;
    char *data = corral_allocate(text->capacity);
    if (text->length) memcpy(data, text->data, text->length);
    free(text->data);
    text->data = data;
  }
  return text->data + text->length;
}

void corral_print(corral_text *text, const char *format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  int length = vsnprintf(NULL, 0, format, arguments);
  if (length >= 0) {
    vsnprintf(grown(text, (size_t)length), (size_t)length + 1, format, again);
    text->length += (size_t)length;
  }
  va_end(again);
  va_end(arguments);
}

void corral_print_string(corral_text *text, const void *string, size_t length) {
  const char *at = string;
  corral_print(text, "\"");
  for (size_t i = 0; i < length; i++) {
    if (at[i] == '"' || at[i] == '\\') {
      corral_print(text, "\\%c", at[i]);
    } else if ((uint8_t)at[i] < 0x20) {
      corral_print(text, "\\u%04x", at[i]);
    } else {
      char *to = grown(text, 1);
      to[0] = at[i];
      to[1] = 0;
      text->length++;
    }
  }
  corral_print(text, "\"");
}

bool corral_is_utf8(const void *bytes, size_t length) {
  const uint8_t *at = bytes, *end = at + length;
  while (at < end) {
    uint8_t lead = *at++;
    if (lead < 0x80) continue;
    int more = lead >= 0xc2 && lead < 0xe0 ? 1 : lead >= 0xe0 && lead < 0xf0 ? 2 : lead >= 0xf0 && lead < 0xf5 ? 3 : -1;
    if (more < 0 || end - at < more) return false;
    /* No longer form of a shorter character, no surrogates, none above the last one. */
    uint8_t least = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80, most = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
    if (*at < least || *at > most) return false;
    for (at++; --more > 0; at++)
      if ((*at & 0xc0) != 0x80) return false;
  }
  return true;
}
