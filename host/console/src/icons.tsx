// Icons of the menu, 20 by 20.

import type { ComponentChildren } from "preact";

function Icon({ children, size = 20 }: { children: ComponentChildren; size?: number }) {
  return (
    <svg
      width={size}
      height={size}
      viewBox="0 0 20 20"
      fill="none"
      stroke="currentColor"
      stroke-width="1.6"
      stroke-linecap="round"
      stroke-linejoin="round"
      aria-hidden="true"
    >
      {children}
    </svg>
  );
}

export const icons = {
  brand: (
    <Icon size={26}>
      <path d="M3 4v13M10 4v13M17 4v13M1.5 8h17M1.5 13h17" />
    </Icon>
  ),
  overview: (
    <Icon>
      <path d="M2.5 12.5l4-5 3.5 3 3-5.5 4.5 7.5M2.5 17h15" />
    </Icon>
  ),
  requests: (
    <Icon>
      <path d="M3 5h14M3 10h9M3 15h5" />
      <circle cx="16" cy="14" r="2" />
    </Icon>
  ),
  deployments: (
    <Icon>
      <path d="M10 2.5l7 3.7v7.6l-7 3.7-7-3.7V6.2zM3.3 6.3L10 10l6.7-3.7M10 10v7.3" />
    </Icon>
  ),
  playground: (
    <Icon>
      <path d="M3 4h14v10H9l-4 3v-3H3zM7 8h6M7 11h3" />
    </Icon>
  ),
  cache: (
    <Icon>
      <circle cx="5" cy="4" r="1.7" />
      <circle cx="15" cy="10" r="1.7" />
      <circle cx="15" cy="16" r="1.7" />
      <path d="M5 5.7V14a2 2 0 002 2h6.3M5 10h8.3" />
    </Icon>
  ),
  sun: (
    <Icon>
      <circle cx="10" cy="10" r="3.5" />
      <path d="M10 2v1.5M10 16.5V18M2 10h1.5M16.5 10H18M4.3 4.3l1.1 1.1M14.6 14.6l1.1 1.1M4.3 15.7l1.1-1.1M14.6 5.4l1.1-1.1" />
    </Icon>
  ),
  moon: (
    <Icon>
      <path d="M16.5 11.8A7 7 0 018.2 3.5a7 7 0 108.3 8.3z" />
    </Icon>
  ),
  leave: (
    <Icon>
      <path d="M8 3H4v14h4M9 10h8M14 7l3 3-3 3" />
    </Icon>
  ),
};
