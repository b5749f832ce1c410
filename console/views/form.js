// Form for a flat JSON Schema: text, numbers, booleans, choices and dates. Other schemas are answered with the JSON editor.

import { useState } from '../vendor/hooks.js';
import { Check, Field, html, typed } from '../ui.js';

const FLAT = ['string', 'integer', 'number', 'boolean'];
const INPUTS = { date: 'date', 'date-time': 'datetime-local', time: 'time', email: 'email', uri: 'url' };

/** Returns true if each property of a schema has a control. */
export function isFlat(schema) {
  const properties = Object.values(schema?.properties ?? {});
  return properties.length > 0 && properties.length <= 50 && properties.every((property) => Array.isArray(property?.enum) || FLAT.includes(property?.type));
}

/** Returns the value of a control as JSON, `undefined` for none. */
function valueOf(property, text) {
  if (property.type === 'boolean' && !property.enum) return text === true;
  if (text === '' || text === undefined) return undefined;
  if (property.enum) return property.enum[Number(text)];
  if (property.type === 'integer' || property.type === 'number') return Number(text);
  if (property.format === 'date-time') return new Date(text).toISOString();
  return text;
}

function initial(property) {
  if (property.enum) {
    const index = property.enum.indexOf(property.default);
    return index < 0 ? '' : String(index);
  }
  if (property.type === 'boolean') return property.default === true;
  return property.default === undefined ? '' : String(property.default);
}

function Control({ name, property, isRequired, value, onChange }) {
  const label = String(property.title ?? name);
  const hint = String(property.description ?? '');
  const set = typed(onChange);
  if (property.enum) {
    return html`<${Field} label=${label} hint=${hint}><select required=${isRequired} value=${value} onChange=${set}>
      <option value="">–</option>${property.enum.map((option, index) => html`<option value=${String(index)}>${property.enumNames?.[index] ?? option}</option>`)}</select><//>`;
  }
  if (property.type === 'boolean') return html`<${Check} checked=${value} onChange=${set}>${label}${hint && html` <span class="muted">${hint}</span>`}<//>`;
  const isNumber = property.type !== 'string';
  return html`<${Field} label=${isRequired ? `${label} *` : label} hint=${hint}><input
    type=${isNumber ? 'number' : INPUTS[property.format] ?? 'text'} step=${isNumber ? (property.type === 'integer' ? 1 : 'any') : undefined}
    min=${property.minimum} max=${property.maximum} minLength=${property.minLength} maxLength=${property.maxLength} required=${isRequired} value=${value} onInput=${set} /><//>`;
}

export function SchemaForm({ schema, onSubmit, isBusy }) {
  const properties = Object.entries(schema.properties);
  const [values, setValues] = useState(() => new Map(properties.map(([name, property]) => [name, initial(property)])));
  const submit = (event) => {
    event.preventDefault();
    const result = properties.map(([name, property]) => [name, valueOf(property, values.get(name))]).filter(([, value]) => value !== undefined);
    onSubmit(Object.fromEntries(result));
  };
  return html`<form class="stack" onSubmit=${submit}>
    ${schema.title && html`<strong>${schema.title}</strong>`}
    <div class="grid">${properties.map(([name, property]) => html`<${Control} key=${name} name=${name} property=${property}
      isRequired=${schema.required?.includes?.(name) ?? false} value=${values.get(name)} onChange=${(value) => setValues(new Map(values).set(name, value))} />`)}</div>
    <div class="row"><button type="submit" class="primary" disabled=${isBusy}>Send answer</button></div>
  </form>`;
}
