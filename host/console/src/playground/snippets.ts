// A request as a program: for a shell, Python, and JavaScript.

export interface Call {
  /** The public listener, without a path. */
  server: string;
  method: string;
  path: string;
  /** JSON, or any other text; empty for none. */
  body: string;
  contentType: string;
  /** Whether the server asks for API keys. */
  keys: boolean;
}

export const LANGUAGES = ["curl", "Python", "JavaScript"] as const;
export type Language = (typeof LANGUAGES)[number];

function shell(text: string): string {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

function curl(call: Call): string {
  const parts = [`curl -sN -X ${call.method} ${shell(call.server + call.path)}`];
  if (call.keys) parts.push(`-H "Authorization: Bearer $CORRAL_API_KEY"`);
  if (call.body !== "") parts.push(`-H ${shell(`Content-Type: ${call.contentType}`)}`, `--data-binary ${shell(call.body)}`);
  return parts.join(" \\\n  ");
}

/** A literal: JSON's strings are Python's, too, once characters beyond U+FFFF are written in Python's way. */
function literal(text: string): string {
  return JSON.stringify(text).replace(/\u007f/g, "\\x7f");
}

function python(call: Call): string {
  const headers = [
    ...(call.body === "" ? [] : [`    "Content-Type": ${literal(call.contentType)},`]),
    ...(call.keys ? ['    "Authorization": f"Bearer {os.environ[\'CORRAL_API_KEY\']}",'] : []),
  ];
  return [
    ...(call.keys ? ["import os"] : []),
    "import urllib.request",
    "",
    "request = urllib.request.Request(",
    `    ${literal(call.server + call.path)},`,
    `    method=${literal(call.method)},`,
    ...(headers.length === 0 ? [] : ["    headers={", ...headers.map((line) => `    ${line}`), "    },"]),
    ...(call.body === "" ? [] : [`    data=${literal(call.body)}.encode(),`]),
    ")",
    "with urllib.request.urlopen(request) as response:",
    "    for line in response:",
    '        print(line.decode(), end="")',
  ].join("\n");
}

function javaScript(call: Call): string {
  const headers = [
    ...(call.body === "" ? [] : [`"Content-Type": ${literal(call.contentType)}`]),
    ...(call.keys ? ["Authorization: `Bearer ${process.env.CORRAL_API_KEY}`"] : []),
  ];
  return [
    `const response = await fetch(${literal(call.server + call.path)}, {`,
    `  method: ${literal(call.method)},`,
    ...(headers.length === 0 ? [] : [`  headers: { ${headers.join(", ")} },`]),
    ...(call.body === "" ? [] : [`  body: ${literal(call.body)},`]),
    "});",
    "const decoder = new TextDecoder();",
    "for await (const part of response.body) process.stdout.write(decoder.decode(part, { stream: true }));",
  ].join("\n");
}

export function snippet(language: Language, call: Call): string {
  return { curl, Python: python, JavaScript: javaScript }[language](call);
}
