// A field above each long table, which hides the rows without its words.
const LONG = 30;

for (const table of document.querySelectorAll("article table")) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < LONG) continue;
  const field = document.createElement("input");
  Object.assign(field, {type: "search", className: "filter", placeholder: "Filter rows, such as: llama shared"});
  field.addEventListener("input", () => {
    const words = field.value.toLowerCase().split(/\s+/);
    for (const row of rows) {
      row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
    }
  });
  table.before(field);
}
