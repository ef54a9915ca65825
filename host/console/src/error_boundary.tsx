// Keeps an error in one page from taking the whole console away.

import { Component, type ComponentChildren } from "preact";
import { errorText } from "./api";
import { Button, PageHead } from "./ui";

export class ErrorBoundary extends Component<{ children: ComponentChildren }, { error: unknown; failed: boolean }> {
  override state = { error: null, failed: false };

  static override getDerivedStateFromError(error: unknown) {
    return { error, failed: true };
  }

  override render() {
    if (!this.state.failed) return this.props.children;
    return (
      <>
        <PageHead title="This page cannot be shown" />
        <div class="note bad" role="alert">
          It failed with the error: {errorText(this.state.error)}. The server may have sent what the console does not know. Load the
          console again, or choose another page.
        </div>
        <div class="row">
          <Button onClick={() => location.reload()}>Load again</Button>
        </div>
      </>
    );
  }
}
