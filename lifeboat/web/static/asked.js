// Controls that a person changes while the router keeps telling how things are.

/**
 * A control over one value. show(value) draws it, also when nothing has changed.
 *
 * A state may have been read before the change that it would undo on the page. So what was asked
 * stands until the router has answered; by then `change` has read a state that knows of it, and
 * older ones are dropped (stream.js). Held by tests/web/test_dashboard.py.
 */
export function control(show) {
  let told = null;
  let asked = null;
  const draw = () => show(asked === null ? told : asked.value);
  return {
    /** Show what a state says is in force, unless something else has just been asked. */
    tell(value) {
      told = value;
      draw();
    },
    /**
     * Show a value and ask for it. send() returns the value in force after it, null where nothing
     * was changed.
     */
    async ask(value, send) {
      const mine = { value };
      asked = mine;
      draw();
      try {
        told = (await send()) ?? told;
      } finally {
        if (asked === mine) {
          asked = null;
          draw();
        }
      }
    },
  };
}
